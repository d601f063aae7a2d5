-- Trims streams that are due, and removes idle ones. Any node may run it at any time.
-- KEYS: shard, names, deadlines; then metadata and history of each stream.
-- ARGV[4]: msgpack of name, limit, ttl and idle TTL of each stream.

local shard, names, deadlines = KEYS[1], KEYS[2], KEYS[3]
local generation = confirmed(shard)
if not generation then return UNCONFIRMED end

local function forget(name, meta, history)
  redis.call('DEL', meta, history)
  redis.call('ZREM', names, name)
  redis.call('ZREM', deadlines, name)
end

for index, stream in ipairs(cmsgpack.unpack(ARGV[4])) do
  local name, limit, ttl, idle = unpack(stream)
  local meta, history = KEYS[2 + 2 * index], KEYS[3 + 2 * index]
  local kept = redis.call('HMGET', meta, 'g', 't')
  if kept[1] ~= generation then
    forget(name, meta, history)
  else
    local length = tidy(shard, meta, history, limit, ttl)
    local forget_at = tonumber(kept[2]) + idle
    if forget_at <= now then
      forget(name, meta, history)
      redis.call('HINCRBY', shard, 'c', -1)
    elseif length > 0 then
      local _, at = read_entry(redis.call('LINDEX', history, 0))
      redis.call('ZADD', deadlines, number(at + ttl), name)
    else
      redis.call('ZADD', deadlines, number(forget_at), name)
    end
  end
end
return 1
