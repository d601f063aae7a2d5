-- Tells all nodes an order, and keeps it for those whose connection is down.
-- KEYS: orders. ARGV[4..]: channel, the order, milliseconds to keep it, how many at most.

-- Those of one millisecond keep their order too.
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[1], number(math.max(now, (tonumber(last[2]) or 0) + 1)), ARGV[5])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', number(now - ARGV[6]))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[7])
redis.call('PEXPIRE', KEYS[1], number(10 * ARGV[6]))
redis.call(publish, ARGV[4], ARGV[5])
return 1
