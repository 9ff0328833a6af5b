//! Adds items to every queue, each until it is acknowledged.

use crate::background::{Background, Stop};
use crate::command::{BITTER, HEAVY, POISON};
use crate::facts::Added;
use crate::log::now_ms;
use crate::random::Random;
use crate::site::{EMBEDDED_QUEUE, QUEUE_BACKOFF, SERVER_QUEUE, SPOOL, Site};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(500);
const QUEUES: [&str; 3] = [SERVER_QUEUE, EMBEDDED_QUEUE, SPOOL];
/// The most that a payload may have.
const POISON_BYTES: usize = 48 * 1024;

/// Adds until it is stopped.
#[derive(Debug)]
pub(crate) struct Adder {
    added: Arc<Mutex<Vec<Added>>>,
    adding: Background,
}

/// How items are added: to the server past the proxy.
#[derive(Debug, Clone)]
pub(crate) struct Producer {
    pub site: Site,
    pub server: String,
}

impl Adder {
    pub(crate) fn start(producer: Producer, seed: u64) -> Self {
        let added = Arc::new(Mutex::new(Vec::new()));
        let list = added.clone();
        let adding = Background::start(move |stop| {
            let mut random = Random::new(seed);
            for number in 0.. {
                if stop.is_told() {
                    return;
                }
                let queue = QUEUES[number % QUEUES.len()];
                let (text, attempts) = kind(&mut random);
                let words = ["--text", &text, "--attempts", &attempts.to_string()];
                // As either user in turn, one of whom is the first to use the spool.
                let id = producer.add(queue, &format!("k{number}"), &words, number / QUEUES.len(), &stop);
                let has_child = !text.starts_with("never");
                if let Some((id, at)) = id {
                    list.lock().unwrap().push(Added { work: queue.into(), id, at, has_child });
                }
                std::thread::sleep(PAUSE);
            }
        });
        Adder { added, adding }
    }

    /// One that was added elsewhere.
    pub(crate) fn note(&self, added: Added) {
        self.added.lock().unwrap().push(added);
    }

    /// Stops it, and gives what was acknowledged.
    pub(crate) fn stop(&mut self) -> Vec<Added> {
        self.adding.stop();
        self.added.lock().unwrap().clone()
    }
}

/// What an item is to do, and how often it is tried.
fn kind(random: &mut Random) -> (String, u32) {
    let ms = random.between(50, 700);
    match random.between(0, 10) {
        0 => (format!("never {ms}"), 2),
        1 => (format!("twice {ms}"), 20),
        // Longer than the TTL: it has to be kept.
        2 => (format!("plain {}", 4_000 + ms * 5), 20),
        _ => (format!("plain {ms}"), 20),
    }
}

impl Producer {
    /// Adds an item of this key until that is acknowledged; gives its id, and when. None if it was told to stop, or if it
    /// was refused: then it is no item.
    fn add(&self, queue: &str, key: &str, words: &[&str], user: usize, stop: &Stop) -> Option<(String, u64)> {
        let name = self.site.queue(queue);
        let store = if queue == SERVER_QUEUE { self.server.clone() } else { self.site.embedded() };
        let mut all = vec!["queue", "add", &name, "--key", key, "--json"];
        all.extend(words);
        if queue != SPOOL && !words.contains(&"--backoff") {
            all.extend(["--backoff", QUEUE_BACKOFF]);
        }
        loop {
            let output = self.site.verb(&all, &store, (queue == SPOOL).then_some(user)).output().unwrap();
            let answer: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
            let id = answer.as_ref().and_then(|answer| Some(answer["id"].as_str()?.to_owned()));
            match output.status.code() {
                Some(0) => return id.map(|id| (id, now_ms())),
                Some(64) => {
                    println!("torture: `{queue}` refuses {key}: {}", String::from_utf8_lossy(&output.stderr).trim());
                    return None;
                }
                _ if stop.is_told() => return None,
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The same, tried once; its completion adds another if it `has_child`.
    pub(crate) fn add_once(&self, queue: &str, key: &str, words: &[&str], has_child: bool) -> Option<Added> {
        let (id, at) = self.add(queue, key, words, 0, &Stop::at_once())?;
        Some(Added { work: queue.into(), id, at, has_child })
    }

    /// Adds the worst payload that is allowed, of one of the two kinds.
    pub(crate) fn poison(&self, queue: &str, key: &str, pick: u64) -> Option<Added> {
        let file = self.site.at("poison");
        let (kind, attempts) = if pick.is_multiple_of(2) { (HEAVY, "6") } else { (BITTER, "12") };
        let mut payload = vec![POISON; POISON_BYTES];
        payload[1] = kind;
        std::fs::write(&file, payload).unwrap();
        let from = file.display().to_string();
        // It doubles with each of so many attempts.
        let words = ["--from", &from, "--attempts", attempts, "--backoff", "50ms"];
        self.add_once(queue, key, &words, true)
    }
}
