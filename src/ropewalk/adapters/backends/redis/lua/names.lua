-- Names of streams in order, strictly after one.
-- KEYS: names. ARGV[4..]: after, most.

return redis.call('ZRANGEBYLEX', KEYS[1], '(' .. ARGV[4], '+', 'LIMIT', 0, ARGV[5])
