-- Leases of nodes, and the end of the sessions and members of dead nodes. ARGV[4]: the action.
-- KEYS after those of sessions, for presence: members by sid, deadlines, owners with their sids, and sids with their owners.

local held, presence_deadlines, owned, owners = KEYS[13], KEYS[14], KEYS[15], KEYS[16]

local act = {}

-- The owner of a node's sessions and members, with a lease for ttl. A lease of an earlier server run is replaced, because the
-- server may have lost departures. It lasts as long as the new one, so that the node can register again what it still has; the
-- rest ends with it. Orders that the node has not received move to the new owner.
local function renewed(node, ttl)
  local lease = redis.call('HGET', lease_numbers, node)
  local owner = lease and node .. '#' .. lease
  local ends = lease and redis.call('ZSCORE', leases, owner)
  local lives = ends and tonumber(ends) > now
  if lives then redis.call('ZADD', leases, number(now + ttl), owner) end
  if lives and tonumber(lease) > tonumber(redis.call('HGET', shard, 'l0') or 0) then return owner, lease end
  lease = redis.call('HINCRBY', shard, 'l', 1)
  redis.call('HSET', lease_numbers, node, lease)
  local former = lives and owner .. '\0'
  owner = node .. '#' .. lease
  redis.call('ZADD', leases, number(now + ttl), owner)
  for _, order in ipairs(former and beginning(pending_orders, former, -1) or {}) do
    redis.call('ZREM', pending_orders, order)
    redis.call('ZADD', pending_orders, 0, owner .. string.sub(order, #former))
  end
  return owner, lease
end

-- node, ttl; then sids whose orders it has received. Returns the number of the lease, the generation of the shard with the run
-- of the server, the time, and orders.
act['renew'] = function()
  local generation = confirmed(shard)
  if not generation then return UNCONFIRMED end
  local owner, lease = renewed(ARGV[5], tonumber(ARGV[6]))
  for index = 7, #ARGV do
    local order = owner .. '\0' .. ARGV[index]
    redis.call('ZREM', pending_orders, order .. '\0000', order .. '\0001', order .. '\0002')
  end
  local answer = {tonumber(lease), generation .. ' ' .. known_run, now}
  for _, member in ipairs(beginning(pending_orders, owner .. '\0', -1)) do
    answer[#answer + 1] = string.sub(member, #owner + 2)
  end
  return answer
end

local function end_session(owner, sid)
  local record = load(sid)
  if not record or record.deadline >= 0 then
    redis.call('ZREM', living, owner .. '\0' .. sid)
    return
  end
  unindex(sid, record)
  record.deadline = now + record.ttl
  store(sid, record)
end

local function end_presence(owner, sid, ttl)
  redis.call('ZREM', owned, owner .. '\0' .. sid)
  redis.call('HDEL', owners, sid)
  if redis.call('HEXISTS', held, sid) == 1 then redis.call('ZADD', presence_deadlines, number(now + ttl), sid) end
end

-- Returns whether more sessions or members of the owner are left.
local function end_owner(owner, most, presence_ttl)
  local start = owner .. '\0'
  local live, present = beginning(living, start, most), beginning(owned, start, most)
  for _, member in ipairs(live) do end_session(owner, string.sub(member, #start + 1)) end
  for _, member in ipairs(present) do end_presence(owner, string.sub(member, #start + 1), presence_ttl) end
  if #live == most or #present == most then return true end
  redis.call('ZREMRANGEBYLEX', pending_orders, '[' .. start, '(' .. start .. '\255')
  redis.call('ZREM', leases, owner)
  local node = node_of(owner)
  if owner == node .. '#' .. (redis.call('HGET', lease_numbers, node) or '') then
    redis.call('HDEL', lease_numbers, node)
  end
  return false
end

local MAX_OWNERS = 10

-- maximum per step, presence TTL, maximum number of kept sessions and of their bytes. Returns 1 if there may be more to do.
act['sweep'] = function()
  local most, kept_most, bytes_most = tonumber(ARGV[5]), tonumber(ARGV[7]), tonumber(ARGV[8])
  local ended = redis.call('ZRANGEBYSCORE', leases, '-inf', number(now), 'LIMIT', 0, MAX_OWNERS)
  local more = #ended == MAX_OWNERS
  for _, owner in ipairs(ended) do more = end_owner(owner, most, tonumber(ARGV[6])) or more end
  local due = redis.call('ZRANGEBYSCORE', session_deadlines, '-inf', number(now), 'LIMIT', 0, most)
  more = #due == most or more
  for _, sid in ipairs(due) do finish(sid, load(sid)) end
  for step = 1, most do
    local excess = redis.call('ZCARD', session_deadlines) > kept_most
      or tonumber(redis.call('HGET', shard, 'sb') or 0) > bytes_most
    if not excess then break end
    local oldest = redis.call('ZRANGE', session_deadlines, 0, 0)[1]
    finish(oldest, load(oldest))
    more = step == most or more
  end
  redis.call('ZREMRANGEBYSCORE', gone, '-inf', number(now))
  redis.call('ZREMRANGEBYSCORE', revoked, '-inf', number(now - REMEMBERED))
  return more and 1 or 0
end

return act[ARGV[4]]()
