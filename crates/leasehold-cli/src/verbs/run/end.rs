//! The end of a run: the lease is released, and the outcome is recorded, logged and reported.

use super::Run;
use crate::exit::Exit;
use crate::run_output::RunFacts;
use crate::supervise::settlement::{Noted, PATIENCE, Settlement, Verdict, is_temporary, log_end, own_exit, settle};
use crate::supervise::{Asked, Copying, Finished};
use crate::{log, output};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Grant, LeaseName, Released, Result, Token, lost_error};

impl Run<'_> {
    /// Gives the lease back, and says what people should know.
    pub(super) async fn end(&mut self, mut finished: Finished) -> Exit {
        // Processes that the command left running have inherited it. The next holder must find it free.
        self.flock = None;
        let (output, cut) = (finished.output.take(), finished.cut);
        if finished.ended.is_temporary()
            && let Some((ended, time_limit)) = self.ran.take()
        {
            let what = log::subject();
            output::warn(&format!("the last try could not be started; the one before it counts for {what}"));
            (finished.ended, finished.time_limit) = (ended, time_limit);
        }
        let (grant, program, coordinator) = (finished.grant.clone(), &self.plan.command[0], &self.coordinator);
        let (token, name) = (grant.token(), format!("`{}`", grant.token()));
        let signals = &mut *self.signals;
        let told_to_end = async {
            signals.next_ending().await;
        };
        let mut releasing = None;
        let settled = settle(finished, &name, program, told_to_end, async |_, verdict| {
            let releasing = releasing.get_or_insert_with(|| coordinator.releasing(&grant, verdict.row().0));
            let released = releasing.attempt().await?;
            let Released::Lost(refusal) = released else { return Ok(None) };
            let lost = lost_error(grant.token(), &refusal);
            Ok(Some(format!("it was taken away while the command ran: {lost}")))
        });
        let Settlement { verdict, exit, is_recorded, usage, why, .. } = settled.await;
        self.verdict = Some(verdict);
        self.why.clone_from(&why);
        let facts = RunFacts { slot: self.slot, exit: Some(exit.code()), why, usage };
        let kept = self.keep_output(is_recorded, facts.clone()).await;
        if is_recorded {
            self.note_end(token, verdict, facts, kept).await;
        }
        let exit = self.pass_on(output, cut, exit).await;
        self.upload().await;
        exit
    }

    /// Ends the keeping of its output; gives the name of the record with its last lines.
    async fn keep_output(&self, is_recorded: bool, facts: RunFacts) -> Option<LeaseName> {
        let keep = self.keep.as_ref()?;
        keep.end(Some(&self.coordinator).filter(|_| is_recorded), facts).await
    }

    async fn upload(&mut self) {
        if let Some(keep) = &self.keep {
            tokio::select! {
                () = keep.upload() => {}
                _ = self.signals.next_ending() => {}
            }
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
        let what = log::subject();
        output::warn(&format!("stopped by a signal before all output of {what} was passed on; the rest is lost"));
        if exit.code() == 0 { Exit::by_signal(number) } else { exit }
    }

    /// Gives back a lease under which nothing was run this time. Its slot stays open, unless an earlier try was run, or
    /// trying again would not help.
    pub(super) async fn unstarted(&mut self, grant: Grant, why: Result<Exit>) -> Result<Exit> {
        self.flock = None;
        let ran = self.ran.take();
        let verdict = match &why {
            _ if ran.is_some() && self.asked == Asked::ToFinish => Verdict::Drained,
            _ if ran.is_some() => Verdict::Failed,
            Err(error) => Verdict::of_error(error.kind()),
            Ok(_) => Verdict::NotStarted,
        };
        self.verdict = Some(verdict);
        let _ = tokio::time::timeout(PATIENCE, self.coordinator.release(&grant, verdict.row().0)).await;
        let reason = why.as_ref().err().map(ToString::to_string);
        let facts = RunFacts { slot: self.slot, exit: None, why: reason, usage: None };
        // Of earlier tries.
        let kept = self.keep_output(true, facts.clone()).await;
        self.note_end(grant.token(), verdict, facts, kept).await;
        self.upload().await;
        match (why, ran) {
            // 69 would say that nothing was done.
            (Err(error), Some((ended, time_limit))) if is_temporary(error.kind()) => {
                output::warn(&error.to_string());
                Ok(own_exit(&ended, time_limit, &self.plan.command[0]))
            }
            (why, _) => why,
        }
    }

    /// From the grant until the last try had ended.
    pub(super) fn ran_for_ms(&self) -> u64 {
        let over = self.over.unwrap_or_else(|| SystemClock.now());
        over.saturating_since(self.begun).as_millis() as u64
    }

    async fn note_end(&self, token: &Token, verdict: Verdict, facts: RunFacts, output: Option<LeaseName>) {
        let ran_for_ms = self.ran_for_ms();
        let (slot, epoch, tries) = (self.slot.filter(|_| self.recorded), token.epoch, self.tries);
        let RunFacts { exit, usage, why, .. } = facts;
        log_end(verdict, exit, ran_for_ms, tries);
        let noted = Noted { slot, epoch, exit, ran_for_ms, tries, renewals: self.renewals.clone(), usage, output, why };
        verdict.note(&self.coordinator, &self.plan.leases[0], noted).await;
    }
}
