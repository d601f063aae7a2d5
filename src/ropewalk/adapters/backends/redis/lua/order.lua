-- Publishes an order to all nodes, and keeps it for disconnected ones.
-- KEYS: orders. ARGV[4..]: channel, the order, milliseconds to keep it, maximum number of kept orders.

-- Unique scores preserve the sequence within a millisecond.
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[1], number(math.max(now, (tonumber(last[2]) or 0) + 1)), ARGV[5])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', number(now - ARGV[6]))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[7])
redis.call('PEXPIRE', KEYS[1], number(10 * ARGV[6]))
redis.call(publish, ARGV[4], ARGV[5])
return 1
