-- Presence sets. A change and its message are one step. ARGV[4]: the action.
-- KEYS: shard, seats, members in order, members by sid, deadlines, owners with their sids, sids with their owners, numbers of
-- leases, leases.

local shard, seats, members, held, deadlines, owned, owners = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local lease_numbers, leases = KEYS[8], KEYS[9]

local act, events = {}, {}

-- A seat: the number of sids that hold it, the member's info, the message of its leave and its size; and the infos of the sids
-- in the order of their joins: sid, info, sid, info … Only the first and the newest ones, so that a seat stays small.
local MAX_SAID_ITEMS = 16

local function seat_of(stream, id)
  local packed = redis.call('HGET', seats, within(stream, id))
  if not packed then return nil end
  local seat = {}
  seat.sids, seat.info, seat.leave, seat.size, seat.said = unpack(cmsgpack.unpack(packed))
  seat.said = seat.said or {}
  return seat
end

local function info_of(seat, sid)
  for at = 1, #seat.said, 2 do
    if seat.said[at] == sid then return seat.said[at + 1], at end
  end
end

-- Removes and returns the info of a sid.
local function remove_info(seat, sid)
  local info, at = info_of(seat, sid)
  if at then
    table.remove(seat.said, at)
    table.remove(seat.said, at)
  end
  return info
end

local function add_info(seat, sid, info)
  remove_info(seat, sid)
  if #seat.said >= MAX_SAID_ITEMS then
    table.remove(seat.said, 3)
    table.remove(seat.said, 3)
  end
  seat.said[#seat.said + 1] = sid
  seat.said[#seat.said + 1] = info
  seat.info = info
end

local function put_seat(stream, id, seat)
  redis.call('HSET', seats, within(stream, id), cmsgpack.pack({seat.sids, seat.info, seat.leave, seat.size, seat.said}))
end

local function announce(kind, stream, id, info, body, size)
  for _, part in ipairs({kind, stream, id, info}) do events[#events + 1] = part end
  redis.call(publish, string.sub(shard, 1, -2) .. 'c:' .. stream, packet('', '', 0, {entry_of(0, now, size, body)}))
end

local function vacate(stream, id, sid)
  local seat = seat_of(stream, id)
  if not seat then return end
  seat.sids = seat.sids - 1
  remove_info(seat, sid)
  if seat.sids > 0 then
    seat.info = seat.said[#seat.said] or seat.info
    return put_seat(stream, id, seat)
  end
  redis.call('HDEL', seats, within(stream, id))
  redis.call('ZREM', members, within(stream, id))
  announce('leave', stream, id, seat.info, seat.leave, seat.size)
end

local function held_by(sid)
  local packed = redis.call('HGET', held, sid)
  return packed and cmsgpack.unpack(packed) or {}
end

local function own(sid, node)
  local owner, before = owner_of(node, lease_numbers, leases), redis.call('HGET', owners, sid)
  if before == owner then return end
  if before then redis.call('ZREM', owned, before .. '\0' .. sid) end
  redis.call('ZADD', owned, 0, owner .. '\0' .. sid)
  redis.call('HSET', owners, sid, owner)
end

local function disown(sid)
  local owner = redis.call('HGET', owners, sid)
  if not owner then return end
  redis.call('ZREM', owned, owner .. '\0' .. sid)
  redis.call('HDEL', owners, sid)
end

local function put_held(sid, streams)
  if next(streams) then
    redis.call('HSET', held, sid, cmsgpack.pack(streams))
    return
  end
  redis.call('HDEL', held, sid)
  redis.call('ZREM', deadlines, sid)
  disown(sid)
end

local function total_of(stream)
  local start = within(stream, '')
  return redis.call('ZLEXCOUNT', members, '[' .. start, '(' .. start .. '\255')
end

local function is_full(stream, before, most)
  local seat = before and seat_of(stream, before)
  local alone = seat and seat.sids == 1
  return total_of(stream) - (alone and 1 or 0) >= most
end

-- node, stream, sid, id, info, message of the join, its size, message of the leave, its size, maximum number of members
act['join'] = function()
  local node, stream, sid, id, info = unpack(ARGV, 5, 9)
  local streams = held_by(sid)
  local before, seat = streams[stream], seat_of(stream, id)
  if before == id then before = nil end
  if not seat and is_full(stream, before, tonumber(ARGV[14])) then return false end
  if before then vacate(stream, before, sid) end
  if not seat then
    seat = {sids = 0, said = {}}
    redis.call('ZADD', members, 0, within(stream, id))
    announce('join', stream, id, info, ARGV[10], tonumber(ARGV[11]))
  end
  if streams[stream] ~= id then seat.sids = seat.sids + 1 end
  add_info(seat, sid, info)
  seat.leave, seat.size = ARGV[12], tonumber(ARGV[13])
  put_seat(stream, id, seat)
  streams[stream] = id
  put_held(sid, streams)
  redis.call('ZREM', deadlines, sid) -- it is live, even if its node counted as dead
  own(sid, node)
  return events
end

-- stream, sid
act['leave'] = function()
  local stream, sid = ARGV[5], ARGV[6]
  local streams = held_by(sid)
  if streams[stream] then
    vacate(stream, streams[stream], sid)
    streams[stream] = nil
    put_held(sid, streams)
  end
  return events
end

-- sid, ttl
act['detach'] = function()
  if redis.call('HEXISTS', held, ARGV[5]) == 1 then
    redis.call('ZADD', deadlines, number(now + ARGV[6]), ARGV[5])
  end
  return 1
end

local function move(old_sid, new_sid, streams)
  local left = {}
  for stream, id in pairs(held_by(old_sid)) do
    local there = streams[stream]
    if not there then
      streams[stream] = id
      local seat = seat_of(stream, id)
      local info = seat and remove_info(seat, old_sid)
      if info then
        add_info(seat, new_sid, info)
        put_seat(stream, id, seat)
      end
    elseif there == id then
      vacate(stream, id, old_sid) -- the new sid holds it too, so the member stays
    else
      left[stream] = id
    end
  end
  disown(old_sid)
  put_held(old_sid, left)
  if next(left) then redis.call('ZADD', deadlines, 0, old_sid) end
end

-- node, old sid, new sid
act['adopt'] = function()
  local node, old_sid, new_sid = ARGV[5], ARGV[6], ARGV[7]
  local streams, found = held_by(new_sid), {}
  if old_sid == new_sid then
    redis.call('ZREM', deadlines, old_sid)
  else
    move(old_sid, new_sid, streams)
  end
  if next(streams) then
    put_held(new_sid, streams)
    own(new_sid, node)
  end
  for stream, id in pairs(streams) do
    local seat = seat_of(stream, id)
    for _, part in ipairs({stream, id, seat and (info_of(seat, new_sid) or seat.info) or ''}) do found[#found + 1] = part end
  end
  return found
end

-- maximum number of sids. Returns the number of expired sids before the events.
act['expire'] = function()
  local due = redis.call('ZRANGEBYSCORE', deadlines, '-inf', number(now), 'LIMIT', 0, ARGV[5])
  for _, sid in ipairs(due) do
    for stream, id in pairs(held_by(sid)) do vacate(stream, id, sid) end
    put_held(sid, {})
  end
  table.insert(events, 1, #due)
  return events
end

-- stream, after, limit
act['page'] = function()
  local start = within(ARGV[5], '')
  local found = {total_of(ARGV[5])}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', members, '(' .. start .. ARGV[6], '(' .. start .. '\255', 'LIMIT', 0, ARGV[7])) do
    local id = string.sub(member, #start + 1)
    local seat = seat_of(ARGV[5], id)
    found[#found + 1] = id
    found[#found + 1] = seat and seat.info or ''
  end
  return found
end

return act[ARGV[4]]()
