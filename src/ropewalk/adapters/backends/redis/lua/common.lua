-- What all scripts share; it is put before each of them.
-- Numbers are written by number(): Lua's own conversion turns 1e14 and above into the text of a float.

local function number(value)
  return string.format('%d', value)
end

-- Milliseconds. The server's clock is the one of all nodes.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Every call begins with: the run of the server that the caller knows; the time that tests set, 0 otherwise; the command that
-- reaches subscribers, PUBLISH or SPUBLISH.
local known_run, publish = ARGV[1], ARGV[3]
local now = ARGV[2] == '0' and clock() or tonumber(ARGV[2])

-- The number of this process of Redis: another one after every restart and failover.
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

local UNCONFIRMED = redis.error_reply('RWHELLO the run of this server is not confirmed')

-- The generation of the shard and how many messages were registered in it; nil where this run of the server was not confirmed
-- by everybody, or where the caller has not heard of it.
local function confirmed(shard)
  local run = run_id()
  local kept = redis.call('HMGET', shard, 'run', 'g', 's')
  if kept[1] ~= run or known_run ~= run then return nil end
  return kept[2], tonumber(kept[3])
end

-- A stream and something within it as one text that no other pair has.
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

-- What goes out to the listeners of a stream.
local function packet(epoch, generation, counter, entries)
  return '\149' .. cmsgpack.pack(epoch, string.sub(known_run, 1, 8), generation, counter)
    .. '\221' .. struct.pack('>I4', #entries) .. table.concat(entries)
end

-- Lets go of what is beyond the limit or too old. Returns how many are left, how many went, their bytes, and the time of the
-- newest of them.
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

-- Trims a stream that nobody is appending to, and keeps the counters right.
local function tidy(shard, meta, history, limit, ttl)
  local left, gone, bytes, newest = trim(history, redis.call('LLEN', history), limit, ttl)
  if gone > 0 then
    redis.call('HSET', meta, 'r', number(newest))
    redis.call('HINCRBY', shard, 'n', number(-gone))
    redis.call('HINCRBY', shard, 'b', number(-bytes))
  end
  return left
end

-- Lets go of uids whose time is over, and of the oldest beyond the limit.
local function forget_uids(uids, order, limit, most)
  local excess = redis.call('HLEN', uids) - limit
  for _ = 1, most do
    local oldest = redis.call('LINDEX', order, 0)
    if not oldest then return end
    local expiry, uid = string.match(oldest, '^(%d+) (.*)$')
    if excess <= 0 and now < tonumber(expiry) then return end
    redis.call('LPOP', order)
    local kept = redis.call('HGET', uids, uid)
    if kept and string.sub(kept, 1, #expiry + 1) == expiry .. ' ' then -- otherwise it was registered again since
      redis.call('HDEL', uids, uid)
      excess = excess - 1
    end
  end
end

-- The oldest rows leave a record queue that is too long.
local function bound_queue(shard, queue, most)
  local excess = redis.call('LLEN', queue) - most
  if excess <= 0 then return end
  redis.call('LTRIM', queue, number(excess), -1)
  redis.call('HINCRBY', shard, 'rr', number(excess))
  redis.call('HINCRBY', shard, 'rd', number(excess))
end
