-- The record of a ring, if it is still the one that was seen. ARGV: the digest of that, '' if there was none; the new one.
local there = redis.call('GET', KEYS[1])
local digest = there and redis.sha1hex(there) or ''
if digest ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
