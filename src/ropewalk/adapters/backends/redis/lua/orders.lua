-- Orders that are still kept.
-- KEYS: orders. ARGV[4]: milliseconds for which they are kept.

return redis.call('ZRANGEBYSCORE', KEYS[1], number(now - ARGV[4]), '+inf')
