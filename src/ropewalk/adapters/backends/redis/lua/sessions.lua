-- Sessions that nodes share. ARGV[4]: the action.

local function send_order(owner, sid, reason)
  redis.call('ZADD', pending_orders, 0, owner .. '\0' .. sid .. '\0' .. reason)
  redis.call(publish, string.sub(shard, 1, -2) .. 'to:' .. node_of(owner), cmsgpack.pack({sid, reason}))
end

local function takeable(record)
  if record.deadline < 0 then return record.ttl > 0 end
  return now < record.deadline
end

-- Results of write, besides the reasons why a session no longer belongs to its node. UNKNOWN is added if the store does not
-- have the session, or did not have it when its identity was revoked.
local WRITTEN, UNKNOWN = -1, 3

-- began: negative if the store should have the session.
local function write(node, sid, identity, version, ttl, live, began, snapshot)
  local record = load(sid)
  if not record then
    local _, reason = mark_of(gone, sid)
    if reason then return reason end
    if began < 0 then return UNKNOWN + TAKEN end
    local revoked_at, how = mark_of(revoked, identity)
    if revoked_at and began <= revoked_at then return UNKNOWN + how end
    record = {version = 0, formers = {}}
  elseif version <= record.version then
    return WRITTEN -- a later write arrived first
  else
    unindex(sid, record)
  end
  record.snapshot, record.identity, record.version, record.ttl = snapshot, identity, version, ttl
  record.owner, record.deadline = owner_of(node, lease_numbers, leases), live == 1 and -1 or now + ttl
  if live == 1 then forget_formers(record) end
  store(sid, record)
  if live == 0 and ttl == 0 then finish(sid, record) end
  return WRITTEN
end

local act = {}

-- node, msgpack of the writes; then the snapshot of each
act['write'] = function()
  local answers = {}
  for index, given in ipairs(cmsgpack.unpack(ARGV[6])) do
    local sid, ids, version, ttl, live, began = unpack(given)
    answers[index] = write(ARGV[5], sid, redis.sha1hex(ids), version, ttl, live, began, ARGV[6 + index])
  end
  return answers
end

act['time'] = function() return now end

-- sid, ids, ttl, snapshot
act['save'] = function()
  local sid, ttl = ARGV[5], tonumber(ARGV[7])
  local before = load(sid)
  if before then remove(sid, before, TAKEN) end
  store(sid, {
    snapshot = ARGV[8], identity = redis.sha1hex(ARGV[6]), owner = '', version = 0, ttl = ttl, deadline = now + ttl, formers = {},
  })
  return 1
end

-- sid
act['peek'] = function()
  local record = load(redis.call('HGET', successors, ARGV[5]) or ARGV[5])
  return record and takeable(record) and record.snapshot
end

-- sid, node, successor
act['take'] = function()
  local sid, node, successor = ARGV[5], ARGV[6], ARGV[7]
  local current = redis.call('HGET', successors, sid) or sid
  local record = load(current)
  if not record or not takeable(record) then return false end
  if current == successor then return record.snapshot end -- a retry
  if mark_of(gone, successor) then return false end -- a retry, and another session has taken it over since
  local formers = record.formers
  formers[#formers + 1] = current
  if #formers > MAX_FORMERS then redis.call('HDEL', successors, table.remove(formers, 1)) end
  local lived_on = record.deadline < 0 and record.owner
  remove(current, record, TAKEN)
  if lived_on then send_order(lived_on, current, TAKEN) end
  if successor ~= '' then
    record.owner, record.version = owner_of(node, lease_numbers, leases), 0
    record.deadline, record.formers = now + record.ttl, formers
    local replaced = load(successor)
    if replaced then unindex(successor, replaced) end
    store(successor, record)
    for _, former in ipairs(formers) do redis.call('HSET', successors, former, successor) end
  end
  return record.snapshot
end

-- ids, whether their clients may reconnect
act['revoke'] = function()
  local identity, reason, found = redis.sha1hex(ARGV[5]), ARGV[6] == '1' and REVOKED or BANNED, {}
  mark(revoked, identity, reason, now)
  for _, member in ipairs(beginning(identities, identity, -1)) do
    local sid = string.sub(member, #identity + 1)
    local record = load(sid)
    if record then
      remove(sid, record, reason)
      if record.deadline < 0 then send_order(record.owner, sid, reason) end
      found[#found + 1] = sid
      found[#found + 1] = record.snapshot
    end
  end
  return found
end

-- limit
act['expired'] = function()
  local found = {}
  for _, packed in ipairs(redis.call('LPOP', over, ARGV[5]) or {}) do
    local sid, snapshot = cmsgpack.unpack(packed)
    found[#found + 1] = sid
    found[#found + 1] = snapshot
  end
  return found
end

return act[ARGV[4]]()
