-- Counts for the metrics.
-- KEYS: shard, uids, members, deadlines of sessions.

local kept = redis.call('HMGET', KEYS[1], 'c', 'n', 'b', 'sb')
return {
  kept[1] or 0, kept[2] or 0, kept[3] or 0, redis.call('HLEN', KEYS[2]), redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[4]), kept[4] or 0,
}
