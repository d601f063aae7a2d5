-- Reads of one stream: where it is, and what is kept of it.
-- KEYS: shard, metadata, history. ARGV[4]: msgpack of limit, ttl, what to read, epoch, offset, most.

local limit, ttl, what, epoch, offset, most = unpack(cmsgpack.unpack(ARGV[4]))
local shard, meta, history = KEYS[1], KEYS[2], KEYS[3]

local generation = confirmed(shard)
if not generation then return UNCONFIRMED end
local kept = redis.call('HMGET', meta, 'e', 'o', 'p', 'r', 'g')
if kept[5] ~= generation then return false end
local tip = tonumber(kept[2])
local answer = {kept[1], kept[2], kept[3], kept[4] or ''}
if what == 'meta' then return answer end

local length = tidy(shard, meta, history, limit, ttl)
answer[4] = redis.call('HGET', meta, 'r') or ''
answer[5] = number(length)
if what == 'length' then return answer end

local first, last = 0, -1
if what == 'after' and (epoch == kept[1] or epoch == '' and offset == 0) then
  if offset >= tip then return answer end
  first = math.max(0, length - (tip - offset))
elseif what == 'page' then
  first = math.max(0, offset - (tip - length))
  last = first + most - 1
end
for _, entry in ipairs(redis.call('LRANGE', history, first, last)) do
  answer[#answer + 1] = entry
end
return answer
