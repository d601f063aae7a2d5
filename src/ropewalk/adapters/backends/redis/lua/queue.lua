-- Rows to be recorded in a journal. ARGV[4]: the action.
-- KEYS: shard, queue. Fields of the shard: rc and ru, the recorder and the end of its claim; rr, rows removed; rd, rows dropped
-- unrecorded.

local shard, queue = KEYS[1], KEYS[2]
local act = {}

local function removed()
  return tonumber(redis.call('HGET', shard, 'rr') or 0)
end

local function holds(node)
  local claim = redis.call('HMGET', shard, 'rc', 'ru')
  return claim[1] == node and now < tonumber(claim[2]), claim[1] and now < tonumber(claim[2])
end

-- node, ttl
act['claim'] = function()
  local mine, held = holds(ARGV[5])
  if held and not mine then return 0 end
  redis.call('HSET', shard, 'rc', ARGV[5], 'ru', number(now + ARGV[6]))
  return 1
end

-- limit
act['read'] = function()
  local answer = {
    number(removed()), number(redis.call('LLEN', queue)), redis.call('HGET', shard, 'rd') or '0',
  }
  if ARGV[5] ~= '0' then
    for _, row in ipairs(redis.call('LRANGE', queue, 0, ARGV[5] - 1)) do answer[#answer + 1] = row end
  end
  return answer
end

-- node, number of removed rows including these
act['remove'] = function()
  if not holds(ARGV[5]) then return 0 end
  local left = tonumber(ARGV[6])
  local count = left - removed()
  if count > 0 then
    redis.call('LTRIM', queue, number(count), -1)
    redis.call('HSET', shard, 'rr', number(left))
  end
  return 1
end

-- maximum length of the queue; then the rows
act['add'] = function()
  if not redis.call('HGET', shard, 'rc') then return 0 end
  for index = 6, #ARGV do redis.call('RPUSH', queue, ARGV[index]) end
  bound_queue(shard, queue, tonumber(ARGV[5]))
  return 1
end

return act[ARGV[4]]()
