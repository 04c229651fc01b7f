//! Requests that wait. Clients take turns, so that one with many requests does not hold up the others.

use super::api::{Request, Sink};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A request with where its events go.
pub(super) struct Waiting {
    pub request: Request,
    pub sink: Box<dyn Sink>,
    pub cancelled: Arc<AtomicBool>,
    pub since: Instant,
}

impl Waiting {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// A line per client; the front of the list of lines is next.
#[derive(Default)]
pub(super) struct FairQueue {
    lines: VecDeque<(u64, VecDeque<Waiting>)>,
    len: usize,
}

impl FairQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// To the end of its client's line.
    pub(super) fn push(&mut self, waiting: Waiting) {
        let client = waiting.request.client;
        self.len += 1;
        match self.lines.iter_mut().find(|(of, _)| *of == client) {
            Some((_, line)) => line.push_back(waiting),
            None => self.lines.push_back((client, VecDeque::from([waiting]))),
        }
    }

    /// The next one, left where it is.
    pub(super) fn peek(&self) -> Option<&Waiting> {
        self.lines.front()?.1.front()
    }

    /// The next one; its client's next turn comes after all others'.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let (client, mut line) = self.lines.pop_front()?;
        let waiting = line.pop_front()?;
        self.len -= 1;
        if !line.is_empty() {
            self.lines.push_back((client, line));
        }
        Some(waiting)
    }

    /// Puts back what was popped: it is next again.
    pub(super) fn push_front(&mut self, waiting: Waiting) {
        let client = waiting.request.client;
        let at = self.lines.iter().position(|(of, _)| *of == client);
        let mut line = at.and_then(|at| self.lines.remove(at)).map_or_else(VecDeque::new, |(_, line)| line);
        line.push_front(waiting);
        self.lines.push_front((client, line));
        self.len += 1;
    }

    /// Takes out those that were cancelled.
    pub(super) fn drop_cancelled(&mut self) {
        for (_, line) in &mut self.lines {
            line.retain(|waiting| !waiting.is_cancelled());
        }
        self.lines.retain(|(_, line)| !line.is_empty());
        self.len = self.lines.iter().map(|(_, line)| line.len()).sum();
    }

    /// All of them, in turn.
    pub(super) fn take_all(&mut self) -> Vec<Waiting> {
        std::iter::from_fn(|| self.pop()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::SamplerConfig;

    fn waiting(client: u64, id: u32) -> Waiting {
        let request = Request { client, ..Request::new(vec![id], SamplerConfig::greedy()) };
        Waiting { request, sink: Box::new(|_| true), cancelled: Arc::default(), since: Instant::now() }
    }

    fn order(queue: &mut FairQueue) -> Vec<u32> {
        queue.take_all().iter().map(|w| w.request.prompt[0]).collect()
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::default();
        for (client, id) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            queue.push(waiting(client, id));
        }
        assert_eq!(queue.len(), 6);
        assert_eq!(queue.peek().map(|w| w.request.prompt[0]), Some(10));
        assert_eq!(order(&mut queue), [10, 20, 30, 11, 21, 12]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn what_is_put_back_is_next() {
        let mut queue = FairQueue::default();
        for (client, id) in [(1, 10), (1, 11), (2, 20)] {
            queue.push(waiting(client, id));
        }
        let first = queue.pop().unwrap();
        queue.push_front(first);
        assert_eq!(queue.len(), 3);
        assert_eq!(order(&mut queue), [10, 20, 11]);
    }

    #[test]
    fn who_comes_later_waits_for_one_turn_of_each() {
        let mut queue = FairQueue::default();
        (0..100).for_each(|i| queue.push(waiting(1, i)));
        queue.pop();
        queue.push(waiting(2, 1000));
        let next: Vec<_> = (0..2).filter_map(|_| queue.pop()).map(|w| w.request.prompt[0]).collect();
        assert_eq!(next, [1, 1000]);
    }

    #[test]
    fn the_cancelled_leave() {
        let mut queue = FairQueue::default();
        for (client, id) in [(1, 10), (2, 20), (1, 11)] {
            let waiting = waiting(client, id);
            waiting.cancelled.store(id != 11, Ordering::Release);
            queue.push(waiting);
        }
        queue.drop_cancelled();
        assert_eq!((queue.len(), order(&mut queue)), (1, vec![11]));
    }
}
