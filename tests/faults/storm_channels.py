"""A channel of several streams, for the storm: which ones, the client says."""

from ropewalk import App, Channel

app = App()


@app.channel
class SeveralChannel(Channel):
    async def subscribed(self) -> None:
        for stream in self.params["streams"]:
            self.stream_from(stream)
