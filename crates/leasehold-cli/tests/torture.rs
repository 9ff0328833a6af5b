//! One minute of torture with the real binary; `cargo xtask torture` gives it more. The harness and its checker are in
//! crates/leasehold-torture.

use std::path::Path;

fn main() -> std::process::ExitCode {
    leasehold_torture::main(Path::new(env!("CARGO_BIN_EXE_leasehold")), Path::new(env!("CARGO_TARGET_TMPDIR")))
}
