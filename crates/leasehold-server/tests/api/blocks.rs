//! The requests and answers of docs/api.md, run with nothing but a shell and `curl`.
//!
//! A block ```` ```sh ```` is run; the block after it, ```` ```json ```` or ```` ```text ````, is what it prints, with what differs
//! from run to run made equal. Those that say `exchange` besides need an issuer, and are run by the test of tokens.

use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

pub const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
const END: &str = "--- end of block";
/// The id of a key that an example makes, and of the one that takes its place.
const NEW_KEY: &str = "w7d2nq5t";
const NEXT_KEY: &str = "h5r2xk7m";
const MOMENT: &str = "2026-11-18T03:00:00.000Z";
const MOMENT_MS: u64 = 1_794_970_800_000;

/// A block of the page, and where it is: the lines of its content.
#[derive(Debug)]
pub struct Block {
    pub language: String,
    pub from: usize,
    pub to: usize,
}

/// The blocks of the page.
pub fn blocks(lines: &[&str]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut begun: Option<(String, usize)> = None;
    for (at, line) in lines.iter().enumerate() {
        match (line.strip_prefix("```"), begun.take()) {
            (Some(_), Some((language, from))) => blocks.push(Block { language, from, to: at }),
            (Some(language), None) => begun = Some((language.to_owned(), at + 1)),
            (None, open) => begun = open,
        }
    }
    assert!(begun.is_none(), "a block of the page has no end");
    blocks
}

/// One shell for several blocks.
pub struct Shell {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    pub fn start(variables: &[(&str, &str)], folder: &Path) -> Self {
        let mut child = Command::new("sh")
            .envs(variables.iter().copied())
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Shell { _child: child, input, output: BufReader::new(output).lines() }
    }

    pub async fn run(&mut self, script: &str) -> String {
        self.input.write_all(format!("{script}\nprintf '\\n{END}\\n'\n").as_bytes()).await.unwrap();
        let mut printed = Vec::new();
        loop {
            let line = tokio::time::timeout(Duration::from_secs(60), self.output.next_line()).await;
            match line.unwrap_or_else(|_| panic!("it takes too long:\n{script}")).unwrap() {
                Some(line) if line == END => return printed.join("\n").trim().to_owned(),
                Some(line) => printed.push(line),
                None => panic!("the shell ended:\n{script}\n{}", printed.join("\n")),
            }
        }
    }
}

/// Makes equal what differs from run to run.
fn settle(value: &mut Value, key: &str) {
    let Value::Object(fields) = value else {
        match value {
            Value::Array(values) => values.iter_mut().for_each(|value| settle(value, key)),
            Value::String(text) => *text = settled(text, key),
            _ => {}
        }
        return;
    };
    if fields.len() == 2 && fields.contains_key("at") && fields.contains_key("ms") {
        *value = json!({ "at": MOMENT, "ms": MOMENT_MS });
        return;
    }
    let is_key = fields.contains_key("allows");
    let id = if fields.contains_key("rotated_from") { NEXT_KEY } else { NEW_KEY };
    for (name, value) in fields.iter_mut() {
        match (name.as_str(), &mut *value) {
            ("token", Value::String(token)) => {
                let parts: Vec<&str> = token.split(':').collect();
                *value = format!("{}:{}:…", settled(parts[0], key), parts[1]).into();
            }
            ("key", Value::String(text)) if is_key => *value = format!("{}{id}…", &text[..5]).into(),
            ("id", Value::String(_)) if is_key => *value = id.into(),
            ("rotated_from", Value::String(_)) => *value = NEW_KEY.into(),
            ("rotated_to", Value::String(_)) => *value = NEXT_KEY.into(),
            ("lineage" | "next" | "confirm" | "pause", Value::String(_)) => *value = "…".into(),
            ("trust_ms", Value::Number(_)) => *value = 59_990.into(),
            ("held_for_ms", Value::Number(_)) => *value = 41_250.into(),
            ("host", Value::String(host)) if !host.starts_with("key-") => *value = "box-1".into(),
            ("pid", Value::Number(pid)) if pid.as_u64() != Some(0) => *value = 4_711.into(),
            _ => settle(value, key),
        }
    }
}

fn settled(text: &str, key: &str) -> String {
    let is_id = |word: &str| word.len() == 23 && word.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let words = text.split('/').map(|word| if is_id(word) { "019a94bb8c0000000a1b2c3" } else { word });
    // The server of this test claims items as this process.
    let here = format!("({}, pid {})", leasehold_system::host::name(), std::process::id());
    let mut text = words.collect::<Vec<_>>().join("/").replace(key, "k3m7q2xa").replace(&here, "(box-1, pid 4711)");
    // Whichever key ordered it.
    if let Some(from) = text.find("(key ").map(|at| at + 5).filter(|from| text.get(from + 8..from + 9) == Some(")")) {
        text.replace_range(from..from + 8, "k3m7q2xa");
    }
    text
}

/// What was printed, as the page shows it. `key` is the id of the key that asked.
fn as_page_has_it(language: &str, printed: &str, key: &str) -> String {
    if language == "json" {
        let mut value: Value = serde_json::from_str(printed).unwrap_or_else(|_| panic!("no JSON: {printed}"));
        settle(&mut value, key);
        return format!("{value:#}");
    }
    // Of a stream: every time is the same one.
    let mut text = String::new();
    for piece in printed.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.trim_end_matches(|c: char| !c.is_ascii_digit());
        let is_time = digits.len() == 13;
        text.push_str(if is_time { "1794970800000" } else { digits });
        text.push_str(&piece[digits.len()..]);
    }
    text
}

/// Runs the blocks of the page that `is_ours` chooses, and compares what they print with the blocks after them, or writes that
/// there with `LEASEHOLD_BLESS`. Gives how many were run.
pub async fn run_all(shell: &mut Shell, key: &str, is_ours: impl Fn(&str) -> bool) -> usize {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut lines: Vec<&str> = page.lines().collect();
    let all = blocks(&lines);
    let word = |block: &Block| block.language.split(' ').next().unwrap_or_default().to_owned();
    assert!(
        all.iter().all(|block| matches!(&*word(block), "sh" | "json" | "text")),
        "every block is run, or is an answer"
    );
    let ours: Vec<&Block> = all.iter().filter(|block| is_ours(&block.language)).collect();
    let (mut answers, mut run) = (Vec::new(), 0);
    for (at, block) in ours.iter().enumerate().filter(|(_, block)| word(block) == "sh") {
        let script = lines[block.from..block.to].join("\n");
        let printed = shell.run(&script).await;
        run += 1;
        let answer = ours.get(at + 1).filter(|next| word(next) != "sh");
        match answer {
            Some(answer) => answers.push((answer, as_page_has_it(&word(answer), &printed, key))),
            None => {
                assert!(!printed.contains("\"kind\""), "a block without an answer is refused:\n{script}\n{printed}")
            }
        }
    }
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        for (block, answer) in answers.iter().rev() {
            lines.splice(block.from..block.to, answer.lines());
        }
        std::fs::write(PAGE, lines.join("\n") + "\n").unwrap();
        return run;
    }
    for (block, answer) in answers {
        assert_eq!(lines[block.from..block.to].join("\n"), answer, "docs/api.md, line {}", block.from + 1);
    }
    run
}
