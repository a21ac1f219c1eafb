//! Requests that wait for a place: their order, their number, their time, and what becomes of those that leave.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use toko_engine::{Engine, Error, Event, Occupancy, Options};

use crate::harness::{GREEDY, OPTIONS, answer_to, collect, embedded, params, submit};

/// "Once upon a time": the model goes on for hundreds of tokens.
const STORY: [u32; 4] = [603, 874, 257, 465];

/// An engine that can run one request at a time.
fn one_place(queue_limit: usize, queue_timeout: Duration) -> Engine {
    embedded(&Options { sequences: 1, queue_limit, queue_timeout, ..OPTIONS })
}

/// A running request that lets the worker go on only when it is told to, or when `steps` is dropped.
struct Holder {
    steps: Sender<()>,
    events: Receiver<Event>,
}

impl Holder {
    fn let_go(self) -> Receiver<Event> {
        self.events
    }
}

/// Takes the place and holds the worker at the end of the prompt.
fn hold(engine: &Engine, max_tokens: usize) -> Holder {
    let (steps, step) = channel();
    let (sender, events) = channel();
    engine
        .submit(answer_to(&STORY), params(GREEDY, max_tokens), move |event| {
            let is_held = !matches!(event, Event::Prefilled { tokens: 0 });
            if sender.send(event).is_err() {
                return ControlFlow::Break(());
            }
            if is_held {
                // Both a step and a sender that is gone let the worker go on.
                let (Ok(()) | Err(_)) = step.recv();
            }
            ControlFlow::Continue(())
        })
        .expect("accepted");
    assert!(matches!(events.recv(), Ok(Event::Prefilled { tokens: 0 })));
    assert!(matches!(events.recv(), Ok(Event::Prefilled { tokens: 4 })));
    Holder { steps, events }
}

#[test]
fn no_more_requests_wait_than_the_limit_and_further_ones_are_refused_at_once() {
    let engine = one_place(2, Duration::MAX);
    let holder = hold(&engine, 3);
    let waiting =
        [1, 2].map(|tokens| submit(&engine, &STORY, params(GREEDY, tokens)).expect("accepted"));
    assert_eq!(engine.occupancy(), Occupancy { running: 1, waiting: 2 });
    let refused = submit(&engine, &STORY, params(GREEDY, 1)).expect_err("refused");
    assert!(
        matches!(refused, Error::QueueFull { waiting: 2, retry_after_seconds: 1..=60 }),
        "{refused}"
    );
    assert_eq!(collect(&holder.let_go()).summary().completion_tokens, 3);
    for (tokens, events) in [1, 2].into_iter().zip(&waiting) {
        assert_eq!(collect(events).summary().completion_tokens, tokens);
    }
    assert_eq!(engine.occupancy(), Occupancy { running: 0, waiting: 0 });
}

#[test]
fn a_place_is_free_again_before_its_client_learns_of_the_end() {
    let engine = one_place(0, Duration::MAX);
    for _ in 0..50 {
        let events = submit(&engine, &STORY, params(GREEDY, 1)).expect("nobody else is there");
        assert_eq!(collect(&events).summary().completion_tokens, 1);
    }
}

#[test]
fn those_that_wait_are_served_in_the_order_in_which_they_came() {
    let engine = one_place(5, Duration::MAX);
    let holder = hold(&engine, 1);
    let (sender, order) = channel();
    for number in 0..5 {
        let sender = sender.clone();
        engine
            .submit(answer_to(&STORY), params(GREEDY, 2), move |event| {
                if matches!(event, Event::Finished(_)) {
                    sender.send(number).expect("the test listens");
                }
                ControlFlow::Continue(())
            })
            .expect("accepted");
    }
    drop((sender, holder));
    assert_eq!(order.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn who_has_waited_too_long_is_sent_away_and_nothing_was_computed_for_it() {
    let engine = one_place(2, Duration::ZERO);
    let holder = hold(&engine, 40);
    let late = submit(&engine, &STORY, params(GREEDY, 1)).expect("accepted");
    let events = holder.let_go();
    let told: Vec<Event> = late.iter().collect();
    let [Event::Failed(Error::QueueTimeout { retry_after_seconds: 1..=60, .. })] = told.as_slice()
    else {
        panic!("{told:?}");
    };
    assert_eq!(collect(&events).summary().completion_tokens, 40);
    // An idle engine has a place at once, however short the wait may be.
    let prompt = submit(&engine, &STORY, params(GREEDY, 2)).expect("accepted");
    assert_eq!(collect(&prompt).summary().completion_tokens, 2);
}

#[test]
fn a_client_that_leaves_while_it_waits_makes_room_for_another() {
    let engine = one_place(1, Duration::MAX);
    let holder = hold(&engine, 600);
    drop(submit(&engine, &STORY, params(GREEDY, 1)).expect("accepted"));
    assert!(submit(&engine, &STORY, params(GREEDY, 1)).is_err(), "nobody knows yet that it left");
    for _ in 0..3 {
        holder.steps.send(()).expect("the worker waits");
        holder.events.recv().expect("it goes on");
    }
    assert_eq!(engine.occupancy(), Occupancy { running: 1, waiting: 0 });
    let next = submit(&engine, &STORY, params(GREEDY, 1)).expect("there is room");
    drop(holder);
    assert_eq!(collect(&next).summary().completion_tokens, 1);
}

#[test]
fn dropping_the_engine_tells_those_that_wait() {
    let engine = one_place(3, Duration::MAX);
    let holder = hold(&engine, 900);
    let waiting = [(); 3].map(|()| submit(&engine, &STORY, params(GREEDY, 1)).expect("accepted"));
    let _events = holder.let_go();
    drop(engine);
    for events in &waiting {
        assert!(matches!(collect(events).end, Err(Error::Closed)));
    }
}
