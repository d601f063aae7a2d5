-- Reads one stream: its tip and its kept history.
-- KEYS: shard, metadata, history. ARGV[4]: msgpack of limit, ttl, what to read, epoch, offset (for since: milliseconds), most
-- entries, the bytes of an answer, and the bytes of an entry besides its own.

local CHUNK = 32

local limit, ttl, what, epoch, offset, most, room, overhead = unpack(cmsgpack.unpack(ARGV[4]))
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

-- The first entry that is not older. Times never go back within a stream.
local function since(at)
  local low, high = 0, length
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, time = read_entry(redis.call('LINDEX', history, middle))
    if time < at then low = middle + 1 else high = middle end
  end
  return low
end

local first, last = 0, length - 1
if what == 'after' and (epoch == kept[1] or epoch == '' and offset == 0) then
  if offset >= tip then return answer end
  first = math.max(0, length - (tip - offset))
elseif what == 'since' and (tonumber(answer[4]) or -1) < offset then
  first = since(offset)
elseif what == 'page' then
  first = math.max(0, offset - (tip - length))
  last = math.min(last, first + most - 1)
end
-- As many as fit into the answer, at least one.
local empty = #answer
while first <= last do
  for _, entry in ipairs(redis.call('LRANGE', history, first, math.min(first + CHUNK - 1, last))) do
    room = room - #entry - overhead
    if room < 0 and #answer > empty then return answer end
    answer[#answer + 1] = entry
  end
  first = first + CHUNK
end
return answer
