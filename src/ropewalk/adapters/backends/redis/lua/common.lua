-- Prepended to all scripts.
-- Use number() to write numbers: Lua's own conversion formats 1e14 and above as a float.

local function number(value)
  return string.format('%d', value)
end

-- Milliseconds. All nodes use the server's clock.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The first arguments of every call: the server run known to the caller; the time set by tests or 0; the publish command,
-- PUBLISH or SPUBLISH.
local known_run, publish = ARGV[1], ARGV[3]
local now = ARGV[2] == '0' and clock() or tonumber(ARGV[2])

-- The id of this Redis process. It changes with every restart and failover.
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

local UNCONFIRMED = redis.error_reply('RWHELLO the run of this server is not confirmed')

-- The generation of the shard and the number of messages registered in it; nil if this run of the server is not confirmed or
-- the caller does not know it.
local function confirmed(shard)
  local run = run_id()
  local kept = redis.call('HMGET', shard, 'run', 'g', 's')
  if kept[1] ~= run or known_run ~= run then return nil end
  return kept[2], tonumber(kept[3])
end

-- A unique string for a stream and a name within it.
local function within(stream, name)
  return #stream .. ':' .. stream .. name
end

-- An entry is a msgpack array that begins with offset, milliseconds and length of the payload.
local function entry_of(offset, at, size, body, elements)
  return string.char(144 + (elements or 9)) .. cmsgpack.pack(offset, at, size) .. body
end

local function read_entry(entry)
  local _, offset, at, size = cmsgpack.unpack_limit(entry, 3, 1)
  return offset, at, size
end

-- The message to the listeners of a stream.
local function packet(epoch, generation, counter, entries)
  return '\149' .. cmsgpack.pack(epoch, string.sub(known_run, 1, 8), generation, counter)
    .. '\221' .. struct.pack('>I4', #entries) .. table.concat(entries)
end

-- Removes entries above the limit or older than the TTL. Returns the number of entries left, the number removed, their bytes,
-- and the time of the newest removed one.
local function trim(history, length, limit, ttl)
  local gone, bytes, newest = 0, 0, nil
  if length > limit then
    for _, entry in ipairs(redis.call('LPOP', history, length - limit)) do
      local _, at, size = read_entry(entry)
      gone, bytes, newest = gone + 1, bytes + size, at
    end
  end
  while gone < length do
    local _, at, size = read_entry(redis.call('LINDEX', history, 0))
    if at + ttl > now then break end
    redis.call('LPOP', history)
    gone, bytes, newest = gone + 1, bytes + size, at
  end
  return length - gone, gone, bytes, newest
end

-- Trims a stream outside of an append, and updates the counters.
local function tidy(shard, meta, history, limit, ttl)
  local left, gone, bytes, newest = trim(history, redis.call('LLEN', history), limit, ttl)
  if gone > 0 then
    redis.call('HSET', meta, 'r', number(newest))
    redis.call('HINCRBY', shard, 'n', number(-gone))
    redis.call('HINCRBY', shard, 'b', number(-bytes))
  end
  return left
end

-- Removes expired uids, and the oldest above the limit.
local function forget_uids(uids, order, limit, most)
  local excess = redis.call('HLEN', uids) - limit
  for _ = 1, most do
    local oldest = redis.call('LINDEX', order, 0)
    if not oldest then return end
    local expiry, uid = string.match(oldest, '^(%d+) (.*)$')
    if excess <= 0 and now < tonumber(expiry) then return end
    redis.call('LPOP', order)
    local kept = redis.call('HGET', uids, uid)
    if kept and string.sub(kept, 1, #expiry + 1) == expiry .. ' ' then -- otherwise it was registered again later
      redis.call('HDEL', uids, uid)
      excess = excess - 1
    end
  end
end

-- Drops the oldest rows of a record queue that is too long.
local function bound_queue(shard, queue, most)
  local excess = redis.call('LLEN', queue) - most
  if excess <= 0 then return end
  redis.call('LTRIM', queue, number(excess), -1)
  redis.call('HINCRBY', shard, 'rr', number(excess))
  redis.call('HINCRBY', shard, 'rd', number(excess))
end
