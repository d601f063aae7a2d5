-- Messages by stream and minute, computed anew from the table at every run.
CREATE MATERIALIZED VIEW by_minute AS
SELECT stream, date_trunc('minute', timestamp) AS minute, count(*) AS messages
FROM publications
GROUP BY stream, date_trunc('minute', timestamp)
