//! One run's output in files: bounded, compressed, and readable at every moment.
//!
//! The first half of the bound goes into the file itself. What comes after it goes into parts beside it, of a quarter each,
//! and all but the last two are removed: so the beginning and the end are there, however much lies between. At the end the
//! parts are appended to the file, which is then an ordinary `.gz`. Each part says at which byte of the output it begins.
//!
//! Promise: whatever ends the writer, what was flushed can be read, up to the last fraction of a second. Only this user can
//! read it. Non-promise: it is not synced; after a loss of power the end may be missing.

use super::folder::Folder;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Compressed output is flushed after this many bytes, however fast they come.
const FLUSHED_EVERY: u64 = 64 * 1024;
/// The comment of a part that is for readers without us.
pub(super) const GAP: &str = "gap";

/// A file that is being written.
pub struct Bounded {
    folder: Folder,
    name: String,
    limit: u64,
    current: GzEncoder<File>,
    /// Locked for as long as it is written: what is in use is not removed, and who follows knows when it is over.
    /// What comes behind the first half is appended through it, because another file may have its name by then.
    first: File,
    /// The number of the current part; zero is the file itself.
    part: u64,
    /// Parts that are there.
    kept: Vec<u64>,
    /// Bytes in the current part.
    written: u64,
    unflushed: u64,
    /// Bytes of output so far, with those that were left out.
    position: u64,
    left_out: u64,
}

impl Bounded {
    /// Makes the file in this folder.
    pub fn create(folder: Folder, name: &str, limit: u64) -> io::Result<Self> {
        let file = folder.create(name)?;
        let first = file.try_clone()?;
        // Readers have it for a moment at most, to see whether it is being written.
        flock(&first, FlockOperation::LockExclusive)?;
        Ok(Bounded {
            folder,
            name: name.to_owned(),
            limit,
            current: begin(file, "0"),
            first,
            part: 0,
            kept: Vec::new(),
            written: 0,
            unflushed: 0,
            position: 0,
            left_out: 0,
        })
    }

    /// Writes what begins at this byte of the output. What lies between it and the last is left out.
    pub fn write(&mut self, at: u64, mut bytes: &[u8]) -> io::Result<()> {
        if at > self.position {
            self.left_out += at - self.position;
            self.position = at;
            self.next_part()?;
        }
        while !bytes.is_empty() {
            let room = (if self.part == 0 { self.limit / 2 } else { self.limit / 4 }).saturating_sub(self.written);
            if room == 0 {
                self.next_part()?;
                continue;
            }
            let (fits, rest) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            self.current.write_all(fits)?;
            let length = fits.len() as u64;
            (self.written, self.position) = (self.written + length, self.position + length);
            self.unflushed += length;
            if self.unflushed >= FLUSHED_EVERY {
                self.flush()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Lets readers see what was written.
    pub fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unflushed) > 0 {
            self.current.flush()?;
        }
        Ok(())
    }

    fn next_part(&mut self) -> io::Result<()> {
        self.current.try_finish()?;
        self.part += 1;
        self.kept.push(self.part);
        if self.kept.len() > 2 {
            let old = self.kept.remove(0);
            // Only the first part is whole for sure, so the bytes are counted.
            let old = part_name(&self.name, old);
            self.left_out += self
                .folder
                .read(&old)
                .and_then(|part| read_part(part, self.limit))
                .map_or(0, |part| part.1.len() as u64);
            self.folder.remove(&old)?;
        }
        let file = self.folder.create(&part_name(&self.name, self.part))?;
        self.current = begin(file, &self.position.to_string());
        (self.written, self.unflushed) = (0, 0);
        Ok(())
    }

    /// Makes one file of it.
    pub fn finish(mut self) -> io::Result<()> {
        self.current.try_finish()?;
        if self.kept.is_empty() {
            return Ok(());
        }
        if self.left_out > 0 {
            let mut gap = begin(&mut self.first, GAP);
            gap.write_all(gap_line(self.left_out).as_bytes())?;
            gap.try_finish()?;
        }
        let parts: Vec<String> = self.kept.iter().map(|part| part_name(&self.name, *part)).collect();
        for part in &parts {
            io::copy(&mut self.folder.read(part)?, &mut self.first)?;
        }
        parts.iter().try_for_each(|part| self.folder.remove(part))
    }
}

/// The line that is shown in place of missing bytes.
pub fn gap_line(bytes: u64) -> String {
    format!("\n[leasehold: {bytes} bytes of output are left out here]\n")
}

fn begin<W: Write>(file: W, comment: &str) -> GzEncoder<W> {
    GzBuilder::new().comment(comment).write(file, Compression::fast())
}

/// What a part is called.
fn part_name(name: &str, number: u64) -> String {
    format!("{name}.{number:06}")
}

/// The parts of a file among the names of its folder, in order.
pub fn parts_among(names: impl IntoIterator<Item = String>, name: &str) -> Vec<String> {
    let number = |file: &str| file.strip_prefix(name)?.strip_prefix('.')?.parse::<u64>().ok();
    let mut numbers: Vec<u64> = names.into_iter().filter_map(|file| number(&file)).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| part_name(name, number)).collect()
}

/// The parts beside a file, in order.
pub(super) fn parts(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    parts_among(names, name).into_iter().map(|part| folder.join(part)).collect()
}

/// Whether somebody is still writing it.
pub fn is_being_written(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| is_locked(&file))
}

/// Whether somebody is still writing this open file.
pub fn is_locked(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_err()
}

/// A stretch of output: at which byte it begins, and its bytes.
pub type Stretch = (u64, Vec<u8>);

/// What is there of a run's output, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub stretches: Vec<Stretch>,
    /// Whether there is more than was asked for.
    pub has_more: bool,
}

/// Reads at most this many bytes of a run's output: a few bytes of a file may expand to more than fits into memory.
pub fn read(path: &Path, most: u64) -> io::Result<Found> {
    let mut found = decode(BufReader::new(File::open(path)?), most);
    let mut room = most;
    for part in parts(path) {
        // Removed meanwhile, or appended to the file.
        if let Ok(file) = File::open(part) {
            let part = decode(BufReader::new(file), room);
            room -= part.stretches.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
            found.has_more |= part.has_more;
            found.stretches.extend(part.stretches);
        }
    }
    found.stretches.sort_by_key(|(at, _)| *at);
    found.stretches.dedup_by_key(|(at, _)| *at);
    Ok(found)
}

fn read_part(part: File, most: u64) -> io::Result<Stretch> {
    let mut found = decode(BufReader::new(part), most);
    found.stretches.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Every stretch, as far as it can be read, because the writer may have been killed; at most this many bytes.
pub fn decode(mut from: impl BufRead, most: u64) -> Found {
    let (mut found, mut room) = (Found::default(), most);
    while from.fill_buf().is_ok_and(|rest| !rest.is_empty()) {
        let mut decoder = GzDecoder::new(&mut from);
        let mut bytes = Vec::new();
        let mut whole = decoder.by_ref().take(room).read_to_end(&mut bytes).map(drop);
        // Also finds the end of a member whose bytes fit exactly.
        if whole.is_ok() && bytes.len() as u64 == room {
            whole = match decoder.read(&mut [0]) {
                Ok(0) => Ok(()),
                Ok(_) => {
                    found.has_more = true;
                    Err(io::ErrorKind::FileTooLarge.into())
                }
                Err(error) => Err(error),
            };
        }
        let comment = decoder.header().and_then(|header| std::str::from_utf8(header.comment()?).ok());
        if let Some(at) = comment.and_then(|comment| comment.parse().ok()) {
            room -= bytes.len() as u64;
            found.stretches.push((at, bytes));
        } else if comment != Some(GAP) {
            return found;
        }
        if whole.is_err() {
            return found;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = u64::MAX;

    fn text(stretches: &[Stretch]) -> Vec<(u64, usize)> {
        stretches.iter().map(|(at, bytes)| (*at, bytes.len())).collect()
    }

    #[test]
    fn the_beginning_and_the_end_are_kept_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/run.log.gz");
        let job = Folder::make(path.parent().unwrap()).unwrap();
        let mut file = Bounded::create(job, "run.log.gz", 8_000).unwrap();
        for number in 0..10_000_u64 {
            file.write(number * 10, format!("{number:09}\n").as_bytes()).unwrap();
        }
        assert!(is_being_written(&path));
        // As a killed writer leaves it.
        file.flush().unwrap();
        let seen = read(&path, ALL).unwrap().stretches;
        assert_eq!(seen[0].1.len(), 4_000);
        assert_eq!(parts(&path).len(), 2);
        file.finish().unwrap();
        assert!(parts(&path).is_empty() && !is_being_written(&path));
        let kept = read(&path, ALL).unwrap().stretches;
        assert_eq!(text(&kept), text(&seen), "nothing is lost or doubled by making one file of it");
        assert!(kept.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= 8_000);
        assert!(kept[0].1.starts_with(b"000000000\n") && kept.last().unwrap().1.ends_with(b"000009999\n"));
        let (at, last) = kept.last().unwrap();
        assert_eq!(at + last.len() as u64, 100_000);
        // The line is in the file itself, so other readers see it too.
        let mut all = String::new();
        flate2::read::MultiGzDecoder::new(File::open(&path).unwrap()).read_to_string(&mut all).unwrap();
        let left_out = 100_000 - kept.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        assert!(all.contains(&gap_line(left_out)), "{left_out}");
    }

    #[test]
    fn what_was_flushed_is_readable_whatever_ended_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/run.log.gz");
        let job = Folder::make(path.parent().unwrap()).unwrap();
        let mut file = Bounded::create(job, "run.log.gz", 1_000_000).unwrap();
        file.write(0, b"one\n").unwrap();
        file.flush().unwrap();
        assert_eq!(read(&path, ALL).unwrap().stretches, [(0, b"one\n".to_vec())]);
        file.write(4, b"two\n").unwrap();
        file.flush().unwrap();
        // What came too fast was left out.
        file.write(1_000, b"three\n").unwrap();
        file.flush().unwrap();
        assert_eq!(read(&path, ALL).unwrap().stretches, [(0, b"one\ntwo\n".to_vec()), (1_000, b"three\n".to_vec())]);
        std::mem::forget(file);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            // No length of it makes a reader fail.
            let found = decode(&whole[..length], ALL).stretches;
            assert!(found.iter().all(|(_, bytes)| b"one\ntwo\n".starts_with(bytes)), "{length}");
        }
    }

    #[test]
    fn what_is_put_in_the_place_of_a_file_meanwhile_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (job, theirs) = (folder.path().join("a/b"), folder.path().join("theirs"));
        std::fs::write(&theirs, "precious").unwrap();
        let mut file = Bounded::create(Folder::make(&job).unwrap(), "run.log.gz", 1_000).unwrap();
        file.write(0, &[b'x'; 900]).unwrap();
        std::fs::rename(job.join("run.log.gz"), job.join("moved")).unwrap();
        std::os::unix::fs::symlink(&theirs, job.join("run.log.gz")).unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(&theirs).unwrap(), b"precious");
        let kept = read(&job.join("moved"), ALL).unwrap().stretches;
        assert_eq!(kept.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), 900);
    }

    #[test]
    fn what_stands_for_more_than_it_may_is_cut_and_said_to_be() {
        let member = |comment: &str, length: usize| {
            let mut member = begin(Vec::new(), comment);
            member.write_all(&vec![b'x'; length]).unwrap();
            member.finish().unwrap()
        };
        // A thousandth of what it stands for.
        let bomb = member("0", 50_000_000);
        assert!(bomb.len() < 500_000, "{}", bomb.len());
        let found = decode(&bomb[..], 10_000);
        assert_eq!((text(&found.stretches), found.has_more), (vec![(0, 10_000)], true));
        // What a reader skips counts too, one member and all of them.
        let found = decode(&[member(GAP, 50_000), member("0", 5)].concat()[..], 10_000);
        assert_eq!((text(&found.stretches), found.has_more), (vec![], true));
        let two = [member("0", 6_000), member("6000", 6_000)].concat();
        let found = decode(&two[..], 10_000);
        assert_eq!((text(&found.stretches), found.has_more), (vec![(0, 6_000), (6_000, 4_000)], true));
        let found = decode(&two[..], 12_000);
        assert_eq!((text(&found.stretches), found.has_more), (vec![(0, 6_000), (6_000, 6_000)], false));
    }
}
