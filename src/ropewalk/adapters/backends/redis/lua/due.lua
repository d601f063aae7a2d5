-- Streams due for the sweep. Also removes expired uids.
-- KEYS: deadlines, uids, order of uids. ARGV[4..]: most, dedup limit.

forget_uids(KEYS[2], KEYS[3], tonumber(ARGV[5]), tonumber(ARGV[4]))
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', number(now), 'LIMIT', 0, ARGV[4])
