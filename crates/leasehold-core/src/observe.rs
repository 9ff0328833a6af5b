//! The steps of a guard, a spool or the proxy, announced before each is taken,
//! so that tests can stop, kill or fail a process there.
//!
//! Promise: without an observer a step costs nothing. Non-promise: this is not
//! a public interface; each user of it names its own steps, by an enum.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Notified of every step. A closure is an observer too.
pub trait Observer<Step>: Send + Sync {
    /// Called before the step is taken. An error makes the step fail with it, where a step can fail.
    fn reach(&self, step: Step) -> io::Result<()>;
}

impl<Step, F: Fn(Step) -> io::Result<()> + Send + Sync> Observer<Step> for F {
    fn reach(&self, step: Step) -> io::Result<()> {
        self(step)
    }
}

/// Announces steps to an observer, if there is one.
pub struct Observed<Step>(Option<Arc<dyn Observer<Step>>>);

impl<Step> Observed<Step> {
    /// Announces to no observer.
    pub const NOBODY: Self = Observed(None);

    /// Announces to this observer.
    pub fn by(observer: Arc<dyn Observer<Step>>) -> Self {
        Observed(Some(observer))
    }

    /// Announces a step, which fails if the observer returns an error.
    pub fn reach(&self, step: Step) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |observer| observer.reach(step))
    }

    /// Announces a step at which an observer can stop the process, but which it cannot fail.
    pub fn announce(&self, step: Step) {
        let _ = self.reach(step);
    }
}

impl<Step> Clone for Observed<Step> {
    fn clone(&self) -> Self {
        Observed(self.0.clone())
    }
}

impl<Step> Default for Observed<Step> {
    fn default() -> Self {
        Self::NOBODY
    }
}

impl<Step> fmt::Debug for Observed<Step> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "observed" } else { "unobserved" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_can_fail_a_step_and_nobody_cannot() {
        let refuses_two = |step: u8| if step == 2 { Err(io::Error::other("two")) } else { Ok(()) };
        let observed = Observed::by(Arc::new(refuses_two));
        assert!(observed.reach(1).is_ok() && observed.reach(2).is_err() && Observed::NOBODY.reach(2_u8).is_ok());
    }
}
