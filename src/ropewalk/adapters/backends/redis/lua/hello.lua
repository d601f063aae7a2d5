-- Confirms a run of the server: checks whether it has all messages that were registered in the former run.
-- After a crash or a failover Redis may lack its newest writes. It loses a tail: its state is the one at its current counter.
-- Every node reports the highest counter it has seen, and the streams to which it may have appended above the current counter.
-- If the reports cover every lost message, only these streams begin new epochs. If a node saw more than the server has and the
-- reports are incomplete, or if no node can report, a new generation begins, with new epochs for all streams.
-- The counter does not cover sessions and members. So every confirmed run also ends the leases of the former run ("l0"): nodes
-- register again what they have, and the rest expires with the former lease.
-- KEYS: shard, numbers of the leases by node, reports by node.
-- ARGV[4..]: generation, counter and run that the caller saw last; milliseconds to wait for other nodes; "1" if the server cannot
-- have lost anything; the name of a new generation; "1" if every run begins a new generation; the caller's node; its report:
-- msgpack of whether it is complete, the number of messages, the streams; "" if it does not know the server's counter yet.
-- Returns run, generation, counter, milliseconds still to wait (-1: send the report), and the number of streams that begin new
-- epochs by this call, unless all do.

local shard, lease_numbers, reports = KEYS[1], KEYS[2], KEYS[3]
local seen_generation, seen, seen_run = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local grace, proof, new_generation, restart = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9], ARGV[10] == '1'
local node, report = ARGV[11], ARGV[12]
local run, present = run_id(), clock()
local kept = redis.call('HMGET', shard, 'run', 'g', 's', 's0', 'cand', 'until', 'max')
local generation, counter = kept[2], tonumber(kept[3] or 0)

-- reached: the highest counter seen by any node; messages above the server's own counter are lost.
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

-- Whether a node with a lease has not reported: it may have appended messages that no other node saw.
local function any_absent()
  for _, name in ipairs(redis.call('HKEYS', lease_numbers)) do
    if redis.call('HEXISTS', reports, name) == 0 then return true end
  end
  return false
end

-- The streams that lost messages; nil if some may be unknown.
local function lost_streams(reached)
  if any_absent() then return nil end
  local known, found = 0, {}
  for _, packed in ipairs(redis.call('HVALS', reports)) do
    local _, complete, count, streams = unpack(cmsgpack.unpack(packed))
    if complete == 0 then return nil end
    known = known + count
    for _, name in ipairs(streams) do found[name] = true end
  end
  if known < reached - counter then return nil end
  return found
end

if not generation then return confirm(new_generation, counter) end
local saw_former_run = seen_generation == generation and seen_run ~= run
if kept[1] == run then
  local before = redis.call('HGET', reports, node)
  local known = before and cmsgpack.unpack(before)[1] or -1
  if saw_former_run and seen > math.max(tonumber(kept[4]), known) then return confirm(new_generation, counter) end
  return {run, generation, number(counter), 0, 0}
end
if restart then return confirm(new_generation, counter) end

local until_when, most = tonumber(kept[6] or 0), tonumber(kept[7] or -1)
if kept[5] ~= run then
  until_when, most = present + grace, -1
  redis.call('DEL', reports)
end
if saw_former_run then most = math.max(most, seen) end
redis.call('HSET', shard, 'cand', run, 'until', number(until_when), 'max', number(most))
if report == '' then return {run, generation, number(counter), -1, 0} end
local complete, count, streams = unpack(cmsgpack.unpack(report))
if seen_generation ~= generation then complete = 0 end
redis.call('HSET', reports, node, cmsgpack.pack({seen, complete, count, streams}))
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
