-- What belongs to a node belongs to one lease of it. An owner is "node#number of the lease"; one that had no lease has number 0
-- and counts as dead.

local function owner_of(node, lease_numbers, leases)
  local lease = redis.call('HGET', lease_numbers, node)
  local owner = node .. '#' .. (lease or '0')
  if not lease then redis.call('ZADD', leases, 'NX', 0, owner) end
  return owner
end

local function node_of(owner)
  return string.match(owner, '^(.*)#%d+$')
end

-- All members of a sorted set that begin with some text. No text of ours has the byte 255 in it.
local function beginning(key, text, most)
  return redis.call('ZRANGEBYLEX', key, '[' .. text, '(' .. text .. '\255', 'LIMIT', 0, most)
end
