-- Sessions. KEYS of all scripts about them:
local shard, sessions, successors, gone, revoked, over = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local pending_orders, living, identities, session_deadlines = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local lease_numbers, leases = KEYS[11], KEYS[12]

-- How long removed sids and revoked identities are kept: longer than any write is retried.
local REMEMBERED = 60000

local MAX_FORMERS = 16

-- A record: snapshot, identity, owner, version, ttl, deadline (-1 while it is live on its owner), former sids still valid.
local function load(sid)
  local packed = redis.call('HGET', sessions, sid)
  if not packed then return nil end
  local record = {}
  record.snapshot, record.identity, record.owner, record.version, record.ttl, record.deadline, record.formers =
    unpack(cmsgpack.unpack(packed))
  return record
end

local function unindex(sid, record)
  redis.call('ZREM', identities, record.identity .. sid)
  if record.deadline < 0 then
    redis.call('ZREM', living, record.owner .. '\0' .. sid)
  else
    redis.call('ZREM', session_deadlines, sid)
    redis.call('HINCRBY', shard, 'sb', number(-#record.snapshot))
  end
end

local function store(sid, record)
  redis.call('HSET', sessions, sid, cmsgpack.pack({
    record.snapshot, record.identity, record.owner, record.version, record.ttl, record.deadline, record.formers,
  }))
  redis.call('ZADD', identities, 0, record.identity .. sid)
  if record.deadline < 0 then
    redis.call('ZADD', living, 0, record.owner .. '\0' .. sid)
  else
    redis.call('ZADD', session_deadlines, number(record.deadline), sid)
    redis.call('HINCRBY', shard, 'sb', number(#record.snapshot))
  end
end

local function forget_formers(record)
  for _, former in ipairs(record.formers) do redis.call('HDEL', successors, former) end
  record.formers = {}
end

-- Why a session no longer belongs to its node: it was taken over or has ended, or it was revoked and its client may reconnect
-- or not.
local TAKEN, REVOKED, BANNED = 0, 1, 2

-- The score and the reason of the mark of a name, or nil. A mark is a member of a sorted set.
local function mark_of(key, name)
  local scores = redis.call('ZMSCORE', key, name .. '\0000', name .. '\0001', name .. '\0002')
  for index = 1, 3 do
    if scores[index] then return tonumber(scores[index]), index - 1 end
  end
end

local function mark(key, name, reason, score)
  redis.call('ZREM', key, name .. '\0000', name .. '\0001', name .. '\0002')
  redis.call('ZADD', key, number(score), name .. '\0' .. reason)
end

local function remove(sid, record, reason)
  unindex(sid, record)
  redis.call('HDEL', sessions, sid)
  forget_formers(record)
  mark(gone, sid, reason, now + REMEMBERED)
end

-- Ends a session. The next call of "expired" returns it, once.
local function finish(sid, record)
  if not record then return redis.call('ZREM', session_deadlines, sid) end
  remove(sid, record, TAKEN)
  redis.call('RPUSH', over, cmsgpack.pack(sid, record.snapshot))
end
