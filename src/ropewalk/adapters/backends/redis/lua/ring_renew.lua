-- A node of a ring renews its lease, and sees all that hold and the record of the ring.
-- KEYS: leases by run, when they end, the record. ARGV: run, lease, milliseconds for which it holds.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
for _, run in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('HDEL', KEYS[1], run)
  redis.call('ZREM', KEYS[2], run)
end
return {redis.call('HVALS', KEYS[1]), redis.call('GET', KEYS[3])}
