-- Removes consumer ARGV[2] of group ARGV[1] of the stream KEYS[1], unless entries are pending for it: those would be lost.
-- In one step, so that none is read for it in between. Returns 1 if it is removed.
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if #pending > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
