-- Sessions and members of a node belong to one of its leases. An owner is "node#number of the lease"; without a lease the number
-- is 0 and the owner counts as dead.

local function owner_of(node, lease_numbers, leases)
  local lease = redis.call('HGET', lease_numbers, node)
  local owner = node .. '#' .. (lease or '0')
  if not lease then redis.call('ZADD', leases, 'NX', 0, owner) end
  return owner
end

local function node_of(owner)
  return string.match(owner, '^(.*)#%d+$')
end

-- All members of a sorted set with a prefix. Members never contain the byte 255.
local function beginning(key, text, most)
  return redis.call('ZRANGEBYLEX', key, '[' .. text, '(' .. text .. '\255', 'LIMIT', 0, most)
end
