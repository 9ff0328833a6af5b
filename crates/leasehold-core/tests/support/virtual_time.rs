//! Time that passes when everybody waits: a clock and the loop that turns it, without a runtime.

use async_trait::async_trait;
use leasehold_core::clock::{Clock, Moment};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const BEGINNING: Moment = Moment::from_nanos(1_000_000_000);

pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A clock of its own.
#[derive(Default)]
pub struct Timeline(Mutex<Line>);

#[derive(Default)]
struct Line {
    elapsed: Duration,
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    wakers: HashMap<u64, Waker>,
    last: u64,
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timeline({:?})", self.elapsed())
    }
}

impl Timeline {
    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.0.lock().unwrap().elapsed
    }

    /// Waits until so much has elapsed.
    pub fn pass_until(&self, elapsed: Duration) -> impl Future<Output = ()> {
        Until { line: self, elapsed, number: None }
    }

    /// Lets all of them run until nobody has anything to do before the end.
    pub fn run(&self, tasks: Vec<Task>, end: Duration) {
        let ready: Arc<Mutex<VecDeque<usize>>> = Arc::new(Mutex::new((0..tasks.len()).collect()));
        let waker = |at| Waker::from(Arc::new(Ready { at, ready: ready.clone() }));
        let mut tasks: Vec<_> = tasks.into_iter().enumerate().map(|(at, task)| (Some(task), waker(at))).collect();
        loop {
            while let Some(at) = { ready.lock().unwrap().pop_front() } {
                let (task, waker) = &mut tasks[at];
                if let Some(running) = task
                    && running.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
                {
                    *task = None;
                }
            }
            let mut line = self.0.lock().unwrap();
            let Some(Reverse((at, number))) = line.due.pop().filter(|Reverse((at, _))| *at <= end) else { return };
            // Nobody waits for it any more, unless there is a waker.
            if let Some(waker) = line.wakers.remove(&number) {
                line.elapsed = line.elapsed.max(at);
                drop(line);
                waker.wake();
            }
        }
    }
}

#[async_trait]
impl Clock for Timeline {
    fn now(&self) -> Moment {
        BEGINNING + self.elapsed()
    }

    async fn sleep_until(&self, until: Moment) {
        self.pass_until(until.saturating_since(BEGINNING)).await;
    }
}

struct Until<'a> {
    line: &'a Timeline,
    elapsed: Duration,
    number: Option<u64>,
}

impl Future for Until<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut line = self.line.0.lock().unwrap();
        if line.elapsed >= self.elapsed {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or_else(|| {
            line.last += 1;
            let number = line.last;
            line.due.push(Reverse((self.elapsed, number)));
            number
        });
        line.wakers.insert(number, context.waker().clone());
        drop(line);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Until<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.line.0.lock().unwrap().wakers.remove(&number);
        }
    }
}

struct Ready {
    at: usize,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().push_back(self.at);
    }
}
