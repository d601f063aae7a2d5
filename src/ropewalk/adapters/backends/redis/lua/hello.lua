-- Confirms a run of the server: whether it has everything that was registered under the run before it.
-- Redis may come back from a crash or a failover without its newest writes. What is lost is a tail: the server is as it was when
-- its counter stood where it stands now. Every node says how far it saw the shard come, and testifies to which streams it may have
-- appended since then. Where that tells of every lost message, only these streams begin new epochs. Where one node saw more than
-- there is and the testimony is incomplete, or nobody can tell, a new generation begins, and with it new epochs for all streams.
-- The counter does not cover sessions and members, so every confirmed run also ends the leases of the run before it ("l0"): nodes
-- register again what they have, and the rest expires with the former lease.
-- KEYS: shard, numbers of the leases by node, testimony by node.
-- ARGV[4..]: generation, counter and run that the caller saw last; milliseconds to wait for other nodes; "1" where the server cannot
-- have lost anything; the name of a new generation; "1" where every run is to be a new generation; the caller's node; its testimony:
-- msgpack of whether it is complete, how many messages, the streams; "" where it does not know yet how far the server has come.
-- Answers run, generation, counter, how many milliseconds are still to wait (-1: testify), and how many streams begin new epochs
-- by this call, if not all do.

local shard, lease_numbers, testimony = KEYS[1], KEYS[2], KEYS[3]
local seen_generation, seen, seen_run = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local grace, proof, new_generation, restart = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9], ARGV[10] == '1'
local node, testified = ARGV[11], ARGV[12]
local run, present = run_id(), clock()
local kept = redis.call('HMGET', shard, 'run', 'g', 's', 's0', 'cand', 'until', 'max')
local generation, counter = kept[2], tonumber(kept[3] or 0)

-- reached: how far the shard has come; what was registered above its counter is lost.
local function confirm(name, reached, lost)
  if name ~= generation then
    redis.call('HSET', shard, 'n', 0, 'b', 0, 'c', 0)
  end
  redis.call('HSET', shard, 'run', run, 'g', name, 's', number(reached), 's0', number(counter))
  redis.call('HSET', shard, 'l0', redis.call('HGET', shard, 'l') or '0')
  redis.call('HDEL', shard, 'cand', 'until', 'max')
  return {run, name, number(reached), 0, lost or 0}
end

local function forget(name)
  local base = string.sub(shard, 1, -2)
  local meta, history = base .. 'm:' .. name, base .. 'h:' .. name
  if redis.call('EXISTS', meta) == 0 then return 0 end
  tidy(shard, meta, history, 0, 0)
  redis.call('DEL', meta, history)
  redis.call('ZREM', base .. 'n', name)
  redis.call('ZREM', base .. 'd', name)
  redis.call('HINCRBY', shard, 'c', -1)
  return 1
end

-- Whether a node with a lease has not testified: it may have appended what nobody else saw.
local function any_absent()
  for _, name in ipairs(redis.call('HKEYS', lease_numbers)) do
    if redis.call('HEXISTS', testimony, name) == 0 then return true end
  end
  return false
end

-- The streams that lost something; nil where some may be unknown.
local function lost_streams(reached)
  if any_absent() then return nil end
  local known, found = 0, {}
  for _, packed in ipairs(redis.call('HVALS', testimony)) do
    local _, complete, count, streams = unpack(cmsgpack.unpack(packed))
    if complete == 0 then return nil end
    known = known + count
    for _, name in ipairs(streams) do found[name] = true end
  end
  if known < reached - counter then return nil end
  return found
end

if not generation then return confirm(new_generation, counter) end
local witness = seen_generation == generation and seen_run ~= run
if kept[1] == run then
  local before = redis.call('HGET', testimony, node)
  local known = before and cmsgpack.unpack(before)[1] or -1
  if witness and seen > math.max(tonumber(kept[4]), known) then return confirm(new_generation, counter) end
  return {run, generation, number(counter), 0, 0}
end
if restart then return confirm(new_generation, counter) end

local until_when, most = tonumber(kept[6] or 0), tonumber(kept[7] or -1)
if kept[5] ~= run then
  until_when, most = present + grace, -1
  redis.call('DEL', testimony)
end
if witness then most = math.max(most, seen) end
redis.call('HSET', shard, 'cand', run, 'until', number(until_when), 'max', number(most))
if testified == '' then return {run, generation, number(counter), -1, 0} end
local complete, count, streams = unpack(cmsgpack.unpack(testified))
if seen_generation ~= generation then complete = 0 end
redis.call('HSET', testimony, node, cmsgpack.pack({seen, complete, count, streams}))
local wait = until_when - present
if wait <= 0 and most > counter and any_absent() then wait = math.min(until_when + 2 * grace - present, 100) end
if wait > 0 then return {run, generation, number(counter), wait, 0} end

if most < 0 and not proof then return confirm(new_generation, counter) end
if most <= counter then return confirm(generation, counter) end
local lost = lost_streams(most)
if not lost then return confirm(new_generation, counter) end
local forgotten = 0
for name in pairs(lost) do forgotten = forgotten + forget(name) end
return confirm(generation, most, forgotten)
