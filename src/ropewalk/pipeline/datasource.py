"""The format `ropewalk` for Spark. Options are parsed here, on the driver, so that mistakes are reported early."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import sink_options, source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ropewalk.pipeline.sink import RopewalkBatchWriter, RopewalkStreamWriter
    from ropewalk.pipeline.source import ShardBatchReader, ShardStreamReader


class RopewalkDataSource(DataSource):
    """Reads the journal, publishes into streams. Readers and writers are imported lazily: Spark loads this module often."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "ropewalk"

    def schema(self) -> str:
        from ropewalk.pipeline.rows import sql_schema

        return sql_schema(source_options(self.options, streaming=True))

    def streamReader(self, schema: "StructType") -> "ShardStreamReader":
        from ropewalk.pipeline.source import ShardStreamReader

        return ShardStreamReader(source_options(self.options, streaming=True))

    def reader(self, schema: "StructType") -> "ShardBatchReader":
        from ropewalk.pipeline.source import PushdownBatchReader, ShardBatchReader

        options = source_options(self.options, streaming=False)
        return PushdownBatchReader(options) if options.pushdown else ShardBatchReader(options)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "RopewalkStreamWriter":
        from ropewalk.pipeline.sink import RopewalkStreamWriter, check

        options = sink_options(self.options)
        check(options, schema)
        return RopewalkStreamWriter(options)

    def writer(self, schema: "StructType", overwrite: bool) -> "RopewalkBatchWriter":
        from ropewalk.pipeline.sink import RopewalkBatchWriter, check

        if overwrite:
            raise UserMistake('publications are only ever appended, and nothing can be overwritten: use mode("append")')
        options = sink_options(self.options)
        check(options, schema)
        return RopewalkBatchWriter(options)
