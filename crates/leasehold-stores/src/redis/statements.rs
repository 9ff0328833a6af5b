//! The scripts, one per operation, and the keys that they touch.
//!
//! Each namespace has one hash tag, so that a cluster keeps it in one slot. A shelf is a hash from names to records,
//! and a sorted set of the same names for listings. A record is its revision, a line feed and the value.
//!
//! Every script follows two rules. The write that counts is the last command that can fail, so that an error means that
//! nothing was changed. And every script has a command that writes, even for a read, because a replica refuses those:
//! so nothing is ever read from a replica. Time is in milliseconds, rounded down.

use crate::url::Namespace;
use ::redis::Script;
use leasehold_core::{Key, Shelf};
use std::sync::LazyLock;

/// The server's time.
macro_rules! now {
    () => {
        "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)"
    };
}

/// A script's text, and the digest by which a server knows it.
pub(super) struct Lua {
    pub(super) code: &'static str,
    pub(super) digest: String,
}

impl Lua {
    fn new(code: &'static str) -> Self {
        Lua { code, digest: Script::new(code).get_hash().to_owned() }
    }
}

/// KEYS: records. ARGV: name; `1` if the record that is read has to be replicated again, so that WAIT waits for it.
/// Then the same value is written again: only the replication stream changes.
pub(super) static READ: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(concat!(
        "redis.call('HDEL', KEYS[1], '')
",
        now!(),
        "
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found and ARGV[2] == '1' then redis.call('HSET', KEYS[1], ARGV[1], found) end
return {now, found}"
    ))
});

/// KEYS: records, and names if the record is new. ARGV: name, expected revision and line feed or nothing, record, channel
/// or nothing. The answer is nil if the record has another revision. A swap that is applied begins with its own writes:
/// after any other write the server would not check `maxmemory` any more.
pub(super) static SWAP: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(concat!(
        now!(),
        "
local found = redis.call('HGET', KEYS[1], ARGV[1])
local is_expected
if ARGV[2] == '' then
  is_expected = not found
else
  is_expected = found and string.find(found, ARGV[2], 1, true) == 1
end
if not is_expected then
  redis.call('HDEL', KEYS[1], '')
  return false
end
if ARGV[2] == '' then redis.call('ZADD', KEYS[2], 0, ARGV[1]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if ARGV[4] ~= '' then redis.pcall('PUBLISH', ARGV[4], '') end
return now"
    ))
});

/// KEYS: records, names. ARGV: name, expected revision and line feed, channel. The answer is nil if the record has
/// another revision. The first two lines fail where the last two would.
pub(super) static ERASE: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(concat!(
        "redis.call('HDEL', KEYS[1], '')
redis.call('ZREM', KEYS[2], '')
",
        now!(),
        "
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found or string.find(found, ARGV[2], 1, true) ~= 1 then return false end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.pcall('PUBLISH', ARGV[3], '')
return now"
    ))
});

/// KEYS: records, names. ARGV: the lower bound of names in ZRANGEBYLEX's notation, how many names, how many bytes. The
/// answer is the time, `1` if there is more, and names and records in turn.
pub(super) static LIST: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(concat!(
        "redis.call('HDEL', KEYS[1], '')
",
        now!(),
        "
local limit, room = tonumber(ARGV[2]), tonumber(ARGV[3])
local names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, limit + 1)
local page = {now, '0'}
for index, name in ipairs(names) do
  if index > limit or room <= 0 then
    page[2] = '1'
    break
  end
  local found = redis.call('HGET', KEYS[1], name)
  page[#page + 1] = name
  page[#page + 1] = found
  if found then room = room - #found end
end
return page"
    ))
});

/// The hash of a shelf's records.
pub(super) fn records(namespace: &Namespace, shelf: Shelf) -> String {
    format!("leasehold:{{{namespace}}}:{}", shelf.as_str())
}

/// The sorted set of a shelf's names.
pub(super) fn names(namespace: &Namespace, shelf: Shelf) -> String {
    format!("{}:names", records(namespace, shelf))
}

/// The channel on which changes of a record are published.
pub(super) fn channel(namespace: &Namespace, key: &Key) -> String {
    format!("{}/{}", records(namespace, key.shelf), key.name)
}
