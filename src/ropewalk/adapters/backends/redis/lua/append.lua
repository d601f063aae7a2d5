-- Registers a group of appends. Each append is atomic.
-- KEYS: shard, names, deadlines, uids, order of uids, record queue; then metadata and history of each stream; then one per producer.
-- ARGV[4]: description of the group; then the body of each publication.

local CHUNK = 1000

local seed, dedup_ttl, dedup_limit, queue_limit, named_streams, batches = unpack(cmsgpack.unpack(ARGV[4]))
local shard, names, deadlines, uids, uid_order, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local first_producer = 6 + 2 * #named_streams

local generation, counter = confirmed(shard)
if not generation then return UNCONFIRMED end

local function chunks(items, call)
  for first = 1, #items, CHUNK do
    call(unpack(items, first, math.min(first + CHUNK - 1, #items)))
  end
end

-- --- the streams of this group ---

local streams = {}

local function stream_of(index)
  local stream = streams[index]
  if stream then return stream end
  local given = named_streams[index]
  stream = {
    name = given[1], limit = given[2], ttl = given[3], forget = given[4], channel = given[5],
    meta = KEYS[5 + 2 * index], history = KEYS[6 + 2 * index],
    entries = {}, live = {}, bytes = 0,
  }
  local kept = redis.call('HMGET', stream.meta, 'e', 'o', 't', 'g', 'p')
  if kept[1] and kept[4] == generation then
    stream.epoch, stream.tip, stream.at = kept[1], tonumber(kept[2]), math.max(tonumber(kept[3]), now)
    stream.partition_key = kept[5] or stream.name
  else
    stream.fresh, stream.epoch, stream.tip, stream.at = true, seed .. (index > 1 and index or ''), 0, now
  end
  streams[index] = stream
  return stream
end

-- --- idempotency keys ---

local known_uids, new_uids = {}, {}

local function load_uids()
  local wanted = {}
  for _, batch in ipairs(batches) do
    for _, publication in ipairs(batch) do
      if publication[3] ~= '' then
        publication[3] = within(named_streams[publication[1]][1], publication[3])
        wanted[#wanted + 1] = publication[3]
      end
    end
  end
  local place = 0
  chunks(wanted, function(...)
    for _, value in ipairs(redis.call('HMGET', uids, ...)) do
      place = place + 1
      if value then
        local expiry, position = string.match(value, '^(%d+) (.*)$')
        if now < tonumber(expiry) then known_uids[wanted[place]] = position end
      end
    end
  end)
end

local function remember_uids()
  if #new_uids == 0 then return end
  local expiry, pairs_of, order = number(now + dedup_ttl), {}, {}
  for _, uid in ipairs(new_uids) do
    pairs_of[#pairs_of + 1] = uid
    pairs_of[#pairs_of + 1] = expiry .. ' ' .. known_uids[uid]
    order[#order + 1] = expiry .. ' ' .. uid
  end
  chunks(pairs_of, function(...) redis.call('HSET', uids, ...) end)
  chunks(order, function(...) redis.call('RPUSH', uid_order, ...) end)
  forget_uids(uids, uid_order, dedup_limit, #new_uids + 1)
end

local producers = {}

-- Sequences are texts of 20 digits, because Lua has no integers of 63 bits.
local function producer_of(index)
  local producer = producers[index]
  if not producer then
    local key = KEYS[first_producer + index]
    local last = redis.call('LINDEX', key, -1)
    producer = {key = key, last = last and string.sub(last, 1, 20) or '', fresh = {}}
    producers[index] = producer
  end
  return producer
end

local function find_sequence(index, sequence)
  local producer = producer_of(index)
  if sequence > producer.last then return nil end
  for _, lines in ipairs({producer.fresh, redis.call('LRANGE', producer.key, 0, -1)}) do
    for _, line in ipairs(lines) do
      if string.sub(line, 1, 20) == sequence then return string.sub(line, 22) end
    end
  end
  return ' 0' -- registered, at an unknown position
end

-- --- appends ---

-- The only check that can reject an append, so the steps after it are atomic.
local function refusal(batch)
  local seen, any = {}, false
  for _, publication in ipairs(batch) do
    if publication[6] ~= '' then any = true end
  end
  if not any then return nil end
  for _, publication in ipairs(batch) do
    local index, named = publication[1], publication[6]
    if publication[2] == 0 then
      local stream = stream_of(index)
      local key = seen[index] or stream.partition_key or (named ~= '' and named) or stream.name
      if named ~= '' and named ~= key then return {false, stream.name, named, key} end
      seen[index] = key
    end
  end
end

local place, registered = 4, 0

local function register(publication)
  place = place + 1
  local index, transient, uid, producer, sequence = unpack(publication, 1, 5)
  local stream, size = stream_of(index), publication[7]
  local body, elements = ARGV[place], publication[8]
  if transient == 1 then
    stream.live[#stream.live + 1] = entry_of(0, now, size, body, elements)
    return 0
  end
  local first = producer > 0 and find_sequence(producer, sequence) or uid ~= '' and known_uids[uid]
  if first then return first end
  stream.tip = stream.tip + 1
  stream.partition_key = stream.partition_key or (publication[6] ~= '' and publication[6]) or stream.name
  if stream.partition_key ~= stream.name then
    if elements == 9 then body = body .. '\0' end -- without a producer time
    body, elements = body .. cmsgpack.pack(stream.partition_key), 11
  end
  local entry = entry_of(stream.tip, stream.at, size, body, elements)
  stream.entries[#stream.entries + 1] = entry
  stream.live[#stream.live + 1] = entry
  stream.bytes = stream.bytes + size
  registered = registered + 1
  local position = stream.epoch .. ' ' .. number(stream.tip)
  if uid ~= '' then
    known_uids[uid] = position
    new_uids[#new_uids + 1] = uid
  end
  if producer > 0 then
    local line = producers[producer]
    line.last = sequence
    line.fresh[#line.fresh + 1] = sequence .. ' ' .. position
  end
  return stream.tip
end

local function answer(batch)
  local refused = refusal(batch)
  if refused then
    place = place + #batch
    return refused
  end
  local answers = {}
  for index, publication in ipairs(batch) do answers[index] = register(publication) end
  return answers
end

-- --- changes ---

local messages, bytes, opened = 0, 0, 0
local recorded, rows = redis.call('HGET', shard, 'rc'), {}

local function keep(stream)
  local before, left, newest = 0, 0, nil
  if stream.fresh then
    opened = opened + 1
    redis.call('DEL', stream.meta, stream.history)
    redis.call('ZADD', names, 0, stream.name)
    redis.call('HSET', stream.meta, 'e', stream.epoch, 'g', generation, 'p', stream.partition_key)
  end
  if stream.limit > 0 and stream.ttl > 0 then
    local length
    chunks(stream.entries, function(...) length = redis.call('RPUSH', stream.history, ...) end)
    before = length - #stream.entries
    local gone, gone_bytes
    left, gone, gone_bytes, newest = trim(stream.history, length, stream.limit, stream.ttl)
    messages, bytes = messages + #stream.entries - gone, bytes + stream.bytes - gone_bytes
  else
    left, newest = tidy(shard, stream.meta, stream.history, 0, 0), stream.at
  end
  redis.call('HSET', stream.meta, 'o', number(stream.tip), 't', number(stream.at))
  if newest then redis.call('HSET', stream.meta, 'r', number(newest)) end
  if left > 0 and before == 0 then
    redis.call('ZADD', deadlines, number(stream.at + stream.ttl), stream.name)
  elseif stream.fresh then
    redis.call('ZADD', deadlines, number(stream.at + stream.forget), stream.name)
  end
end

local function record(stream)
  local start = '\148' .. cmsgpack.pack(stream.partition_key, stream.name, stream.epoch)
  for _, entry in ipairs(stream.entries) do rows[#rows + 1] = start .. entry end
end

load_uids()
local answers = {}
for index, batch in ipairs(batches) do answers[index] = answer(batch) end

counter = counter + registered
local epochs = {}
for index = 1, #named_streams do
  local stream = stream_of(index)
  epochs[index] = stream.epoch
  if #stream.entries > 0 then
    keep(stream)
    if recorded then record(stream) end
  end
  if #stream.live > 0 then
    redis.call(publish, stream.channel, packet(stream.epoch, generation, counter, stream.live))
  end
end
remember_uids()
if #rows > 0 then
  chunks(rows, function(...) redis.call('RPUSH', queue, ...) end)
  bound_queue(shard, queue, queue_limit)
end
for _, producer in pairs(producers) do
  if #producer.fresh > 0 then
    chunks(producer.fresh, function(...) redis.call('RPUSH', producer.key, ...) end)
    redis.call('LTRIM', producer.key, -256, -1)
  end
end
if registered > 0 then redis.call('HSET', shard, 's', number(counter)) end
if messages ~= 0 then redis.call('HINCRBY', shard, 'n', number(messages)) end
if bytes ~= 0 then redis.call('HINCRBY', shard, 'b', number(bytes)) end
if opened > 0 then redis.call('HINCRBY', shard, 'c', number(opened)) end
return cmsgpack.pack({string.sub(known_run, 1, 8), generation, counter, epochs, answers})
