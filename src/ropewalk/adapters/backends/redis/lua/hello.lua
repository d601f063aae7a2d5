-- Confirms a run of the server: whether it has everything that was registered under the run before it.
-- Redis may come back from a crash or a failover without its newest writes. Every node says how far it saw the shard come; where
-- one saw more than there is, or nobody can tell, a new generation begins, and with it new epochs for all streams.
-- The counter does not cover sessions and members, so every confirmed run also ends the leases of the run before it ("l0"): nodes
-- register again what they have, and the rest expires with the former lease.
-- KEYS: shard.
-- ARGV[4..]: generation, counter and run that the caller saw last; milliseconds to wait for other nodes; "1" where the server cannot
-- have lost anything; the name of a new generation; "1" where every run is to be a new generation.
-- Answers run, generation, counter and how many milliseconds are still to wait.

local shard = KEYS[1]
local seen_generation, seen, seen_run = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local grace, proof, new_generation, restart = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9], ARGV[10] == '1'
local run, present = run_id(), clock()
local kept = redis.call('HMGET', shard, 'run', 'g', 's', 's0', 'cand', 'until', 'max')
local generation, counter = kept[2], tonumber(kept[3] or 0)

local function confirm(name)
  if name ~= generation then
    redis.call('HSET', shard, 'n', 0, 'b', 0, 'c', 0)
  end
  redis.call('HSET', shard, 'run', run, 'g', name, 's', number(counter), 's0', number(counter))
  redis.call('HSET', shard, 'l0', redis.call('HGET', shard, 'l') or '0')
  redis.call('HDEL', shard, 'cand', 'until', 'max')
  return {run, name, number(counter), 0}
end

if not generation then return confirm(new_generation) end
local witness = seen_generation == generation and seen_run ~= run
if kept[1] == run then
  if witness and seen > tonumber(kept[4]) then return confirm(new_generation) end
  return {run, generation, number(counter), 0}
end
if restart then return confirm(new_generation) end

local until_when, most = tonumber(kept[6] or 0), tonumber(kept[7] or -1)
if kept[5] ~= run then
  until_when, most = present + grace, -1
end
if witness then most = math.max(most, seen) end
if present < until_when then
  redis.call('HSET', shard, 'cand', run, 'until', number(until_when), 'max', number(most))
  return {run, generation, number(counter), until_when - present}
end
if most > counter or most < 0 and not proof then return confirm(new_generation) end
return confirm(generation)
