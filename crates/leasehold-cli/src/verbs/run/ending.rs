//! The end of a run: the lease is given back, and people are told.

use super::{PATIENCE, Run, by_signal};
use crate::exit::Exit;
use crate::output;
use crate::supervise::telling::{self, Telling, Untold};
use crate::supervise::{Copying, Course, Ended, Finished};
use leasehold_core::clock::Moment;
use leasehold_core::{Event, Grant, Outcome, Released, Result, Token};
use leasehold_work::schedule::Fate;
use std::io::IsTerminal;

impl Run<'_> {
    /// Gives the lease back, counts, and says what people should know.
    pub(super) async fn settle(&mut self, finished: Finished) -> Exit {
        let Finished { ended, course, mut lost, survivors, grant, trust_until, notes, output, cut, mut dead_man } =
            finished;
        for note in notes {
            output::say(&note);
        }
        let token = grant.token();
        let (ended, course) = match self.ran.take() {
            Some(ran) if ended.passes() => {
                output::say("the last try could not be started; what counts is the one before");
                ran
            }
            _ => (ended, course),
        };
        let outcome = match (&lost, &ended, course) {
            (_, ended, _) if ended.passes() => Outcome::NotStarted,
            (Some(_), ..) => Outcome::Lost,
            (None, Ended::Exited(0), Course::Whole) => Outcome::Succeeded,
            _ => Outcome::Failed,
        };
        let mut unrecorded = None;
        if survivors.is_empty() {
            match self.release(&grant, outcome, trust_until, lost.is_some()).await {
                Ok(Released::Lost(_)) => {
                    lost.get_or_insert_with(|| "it was taken away while the command ran".into());
                }
                Ok(_) => {}
                Err(_) if lost.is_some() => {}
                Err(Untold::Refused(error)) => unrecorded = Some(error.to_string()),
                Err(Untold::Unrecorded(why)) => unrecorded = Some(why),
            }
            let _ = dead_man.wait();
        } else {
            output::say(&format!(
                "these processes could not be ended, they are another user's or wait for a disk: {survivors:?}; `{token}` is not \
                 released, it expires by itself"
            ));
        }
        let (mut exit, event) = match lost {
            Some(lost) => {
                let done = if survivors.is_empty() { "the command was stopped" } else { "the command was not stopped" };
                output::say(&format!("lost `{token}`, {done}: {lost}"));
                (Exit::LostInRun, Some(Event::Lost))
            }
            None => {
                let exit = own_exit(ended, course, &self.plan.command[0].to_string_lossy());
                (exit, (exit.code() != 0 && outcome != Outcome::NotStarted).then_some(Event::Failed))
            }
        };
        if let Some(why) = unrecorded {
            exit = not_recorded(token, exit, &why);
        } else {
            self.count_end(token, outcome, exit, event).await;
        }
        self.pass_on(output, cut, exit).await
    }

    /// The journal's entry and the counter.
    async fn count_end(&self, token: &Token, outcome: Outcome, exit: Exit, event: Option<Event>) {
        let fate = match outcome {
            Outcome::Succeeded if event.is_none() => Fate::Succeeded,
            Outcome::NotStarted => Fate::NotStarted,
            Outcome::Lost => Fate::Lost,
            _ if matches!(event, Some(Event::Lost)) => Fate::Lost,
            _ => Fate::Failed,
        };
        self.note_end(token, fate, fate.is_final().then_some(exit.code())).await;
        if let Some(event) = event {
            let _ = tokio::time::timeout(PATIENCE, self.coordinator.count(&self.plan.leases[0], event)).await;
        }
    }

    /// Waits for the rest of the output, until a signal comes: then it is lost, and that is not a good end.
    async fn pass_on(&mut self, output: Option<Copying>, mut cut: Option<i32>, exit: Exit) -> Exit {
        if let Some(mut output) = output {
            tokio::select! {
                biased;
                () = output.arrive() => {}
                number = self.signals.next_ending() => cut = Some(number),
            }
        }
        let Some(number) = cut else { return exit };
        output::say("told to end before everything that the command had printed was passed on; the rest is lost");
        if exit.code() == 0 { by_signal(number) } else { exit }
    }

    /// Releases the lease, and retries for as long as it is trusted: nobody else can have it before that, and its slot would be
    /// run again after it. A lease that is lost is released only if that can be done at once.
    async fn release(
        &mut self,
        grant: &Grant,
        outcome: Outcome,
        trust_until: Moment,
        is_lost: bool,
    ) -> Result<Released, Untold> {
        let mut releasing = self.coordinator.releasing(grant, outcome);
        let telling = Telling { what: format!("the end of `{}`", grant.token()), trust_until };
        let told_to_end = async {
            self.signals.next_ending().await;
        };
        let telling = telling::tell(&telling, told_to_end, async || releasing.attempt().await);
        if !is_lost {
            return telling.await;
        }
        let late = |_| Untold::Unrecorded("the store did not answer".into());
        tokio::time::timeout(PATIENCE, telling).await.unwrap_or_else(|e| Err(late(e)))
    }
}

/// What people are told if the store could not be told. A command that failed keeps its own code.
fn not_recorded(token: &Token, exit: Exit, why: &str) -> Exit {
    let (how, exit) = match exit.code() {
        0 => ("is done".to_owned(), Exit::Untold),
        code => (format!("ended with exit code {code}"), exit),
    };
    output::say(&format!(
        "not recorded: the command {how}, but `{token}` could not be released; it expires by itself, and what it was run for may \
         be run again: {why}"
    ));
    exit
}

/// The command's own exit code, as a shell would show it.
pub(super) fn own_exit(ended: Ended, course: Course, program: &str) -> Exit {
    match ended {
        // As timeout(1) does: a command that was cut off has not succeeded, however it says it ended.
        Ended::Exited(0) if course == Course::CutOff => Exit::Code(124),
        Ended::Exited(code) => Exit::Code(u8::try_from(code & 0xff).unwrap_or(1)),
        Ended::Killed(signal @ (2 | 3)) if std::io::stdin().is_terminal() => Exit::Signal(signal as u8),
        Ended::Killed(signal) => by_signal(signal),
        Ended::NotStarted(trouble) => {
            output::say(&format!("cannot run `{program}`: {trouble}"));
            if trouble.passes() { Exit::Unavailable } else { Exit::Code(trouble.code()) }
        }
    }
}
