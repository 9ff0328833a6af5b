//! Whether commands can be watched over on this machine, and how they are ended.

use super::{Finding, Verdict, finding};
use crate::supervise;
use crate::supervise::trial::{Ending, ending};
use leasehold_core::Result;

pub fn processes() -> Result<Finding> {
    if let Err(error) = supervise::check() {
        return Ok(finding(Verdict::Bad, "processes", error.to_string()));
    }
    Ok(match ending()? {
        Ending::Cgroup(path) => {
            let path = path.display();
            finding(Verdict::Good, "processes", format!("ended by cgroup.kill, in control groups below {path}"))
        }
        Ending::Walk(why) => finding(
            Verdict::Note,
            "processes",
            format!("ended by walking the process table, because there is no control group for them: {why}"),
        ),
    })
}
