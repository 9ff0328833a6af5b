//! A run's output, read while it is written.
//!
//! Promise: each byte is decompressed once, however often somebody looks; what was opened is read to its end when it was removed
//! meanwhile. Non-promise: who looks later than two parts are written misses what was between them.

use super::file::{GAP, Stretch, parts};
use flate2::write::GzDecoder;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// How many compressed bytes are taken in one step: they stand for a thousand times as many at most.
const STEP: u64 = 4 * 1024;

/// A run's file, and the parts beside it.
pub struct Followed {
    file: File,
    path: PathBuf,
    first: Growing,
    parts: BTreeMap<PathBuf, Growing>,
}

impl Followed {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let first = Growing::new(file.try_clone()?);
        Ok(Followed { file, path: path.to_path_buf(), first, parts: BTreeMap::new() })
    }

    /// Whether nobody writes it any more. One without a byte is about to be written, or its writer died.
    pub fn is_over(&self) -> bool {
        let is_begun = self.file.metadata().is_ok_and(|metadata| metadata.len() > 0);
        let is_over = flock(&self.file, FlockOperation::NonBlockingLockShared).is_ok();
        let _ = flock(&self.file, FlockOperation::Unlock);
        is_begun && is_over
    }

    /// What has come since the last time, in order, and whether that is all: it ends with the step that reaches so many bytes.
    /// What is appended to the file from its parts comes a second time.
    pub fn read_new(&mut self, most: u64) -> (Vec<Stretch>, bool) {
        let (mut new, mut room) = (Vec::new(), most);
        self.first.read(&mut room, &mut new);
        let there = parts(&self.path);
        for path in &there {
            if !self.parts.contains_key(path)
                && let Ok(file) = File::open(path)
            {
                self.parts.insert(path.clone(), Growing::new(file));
            }
        }
        self.parts.values_mut().for_each(|part| part.read(&mut room, &mut new));
        if room > 0 {
            self.parts.retain(|path, _| there.contains(path));
        }
        new.sort_by_key(|(at, _)| *at);
        (new, room > 0)
    }
}

/// A file that is appended.
struct Growing {
    file: File,
    /// Read, and not decompressed yet.
    input: Vec<u8>,
    /// Of the member that is being read; none behind something that is no output of ours.
    decoder: Option<GzDecoder<Vec<u8>>>,
    begun: Member,
}

/// What the header of a member says.
#[derive(Clone, Copy)]
enum Member {
    Unknown,
    /// Output; the next byte is this one of it.
    Output(u64),
    /// For readers without us.
    Gap,
}

impl Growing {
    fn new(file: File) -> Self {
        Growing { file, input: Vec::new(), decoder: Some(GzDecoder::new(Vec::new())), begun: Member::Unknown }
    }

    fn read(&mut self, room: &mut u64, new: &mut Vec<Stretch>) {
        while *room > 0 && self.step(room, new).is_some() {}
    }

    /// Decompresses a little more; none if there is no more now.
    fn step(&mut self, room: &mut u64, new: &mut Vec<Stretch>) -> Option<()> {
        let decoder = self.decoder.as_mut()?;
        if self.input.is_empty() {
            (&self.file).take(STEP).read_to_end(&mut self.input).ok().filter(|length| *length > 0)?;
        }
        let taken = decoder.write(&self.input);
        // Behind the end of a member nothing is taken.
        if let Ok(0) = taken {
            (self.decoder, self.begun) = (Some(GzDecoder::new(Vec::new())), Member::Unknown);
            return Some(());
        }
        let Ok(taken) = taken.and_then(|taken| decoder.flush().map(|()| taken)) else {
            self.decoder = None;
            return None;
        };
        self.input.drain(..taken);
        let bytes = std::mem::take(decoder.get_mut());
        if bytes.is_empty() {
            return Some(());
        }
        *room = room.saturating_sub(bytes.len() as u64);
        if let Member::Unknown = self.begun {
            let comment = decoder.header().and_then(|header| std::str::from_utf8(header.comment()?).ok());
            self.begun = match comment.map(|comment| (comment, comment.parse())) {
                Some((_, Ok(at))) => Member::Output(at),
                Some((GAP, _)) => Member::Gap,
                _ => {
                    self.decoder = None;
                    return None;
                }
            };
        }
        if let Member::Output(at) = &mut self.begun {
            let begin = *at;
            *at += bytes.len() as u64;
            new.push((begin, bytes));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::{Bounded, read};
    use super::super::folder::Folder;
    use super::*;

    const ALL: u64 = u64::MAX;

    /// The output, as far as these stretches have it.
    fn joined(into: &mut Vec<u8>, stretches: &[Stretch]) {
        for (at, bytes) in stretches {
            let at = usize::try_from(*at).unwrap();
            assert!(at <= into.len(), "nothing is left out here");
            into.extend(bytes.get(into.len() - at..).unwrap_or_default());
        }
    }

    #[test]
    fn nothing_is_decompressed_twice_while_a_file_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/run.log.gz");
        let mut file = Bounded::create(Folder::make(path.parent().unwrap()).unwrap(), "run.log.gz", 1 << 20).unwrap();
        let mut followed = Followed::open(&path).unwrap();
        assert_eq!(followed.read_new(ALL), (Vec::new(), true));
        let mut at = 0;
        for bytes in [vec![b'x'; 300_000], b"two\n".to_vec(), vec![b'y'; 70_000]] {
            file.write(at, &bytes).unwrap();
            file.flush().unwrap();
            let (new, _) = followed.read_new(ALL);
            let mut seen = vec![0; usize::try_from(at).unwrap()];
            joined(&mut seen, &new);
            assert_eq!(new.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), bytes.len());
            assert!(seen.ends_with(&bytes) && new[0].0 == at);
            at += bytes.len() as u64;
            assert_eq!(followed.read_new(ALL), (Vec::new(), true), "it has not grown");
        }
        assert!(!followed.is_over());
        file.finish().unwrap();
        assert!(followed.is_over() && followed.read_new(ALL).0.is_empty());
    }

    #[test]
    fn what_is_followed_over_parts_and_past_the_end_is_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/run.log.gz");
        let mut file = Bounded::create(Folder::make(path.parent().unwrap()).unwrap(), "run.log.gz", 8_000).unwrap();
        let mut followed = Followed::open(&path).unwrap();
        let (mut seen, mut written) = (Vec::new(), Vec::new());
        for number in 0..2_000_u64 {
            file.write(number * 10, format!("{number:09}\n").as_bytes()).unwrap();
            written.extend(format!("{number:09}\n").into_bytes());
            if number % 50 == 0 {
                file.flush().unwrap();
                joined(&mut seen, &followed.read_new(ALL).0);
                assert_eq!(seen, written, "{number}");
            }
        }
        file.finish().unwrap();
        // In several pieces, and complete in the end.
        let mut pieces = 0;
        let mut is_all = false;
        while !is_all {
            let (new, is_last) = followed.read_new(1_000);
            joined(&mut seen, &new);
            (pieces, is_all) = (pieces + 1, is_last);
        }
        assert!(pieces > 1 && seen == written, "{pieces}");
        let kept = read(&path, ALL).unwrap().stretches;
        assert!(kept.iter().all(|(at, bytes)| seen[usize::try_from(*at).unwrap()..].starts_with(bytes)));
    }
}
