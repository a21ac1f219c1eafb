//! Several processes on one machine: together they never get more than there is, and what one held is free when it is gone.

use std::time::{Duration, Instant};

use crate::place::{Explained, Finished, Place};

const ONE: &[&str] = &["--replicas", "1"];

/// Limits a place to two and a half of the embedded model.
fn room_for_two() -> Place {
    let place = Place::new();
    let total = place.total("embedded", ONE);
    place.limit(total * 5 / 2);
    place
}

#[test]
fn of_three_servers_that_start_together_two_are_let_in_and_the_third_is_told_who_is() {
    let place = room_for_two();
    let starting = [(); 3].map(|()| place.start(ONE));
    let (mut servers, mut refused) = (Vec::new(), Vec::new());
    for starting in starting {
        match starting.ready() {
            Ok(server) => servers.push(server),
            Err(finished) => refused.push(finished),
        }
    }
    assert_eq!((servers.len(), refused.len()), (2, 1), "{refused:?}");
    refused[0].assert_refused();
    for server in &servers {
        let told = &refused[0].stderr;
        let is_holder = |line: &str| {
            line.starts_with("held by embedded ")
                && line.contains(&format!("toko serve, process {},", server.pid()))
        };
        assert!(told.lines().any(is_holder), "{}: {told}", server.pid());
    }

    // Whoever looks from outside sees the same.
    let holders = place.holders();
    let total = place.total("embedded", ONE);
    assert_eq!(holders.len(), 2, "{holders:?}");
    for holder in &holders {
        assert_eq!((&holder["model"], &holder["bytes"]), (&"embedded".into(), &total.into()));
    }
}

#[test]
fn what_a_killed_server_held_can_be_used_within_a_second() {
    let place = room_for_two();
    let mut servers = vec![place.serve(ONE), place.serve(ONE)];
    // A machine that does other work may be slow once.
    let times = [(); 3].map(|()| {
        place.start(ONE).ready().err().unwrap().assert_refused();
        let killed = Instant::now();
        servers.remove(0).kill();
        let Explained { json, code } = place.explain("embedded", ONE);
        let time = killed.elapsed();
        assert_eq!(code, Some(0), "{json}");
        assert_eq!(json["holders"].as_array().unwrap().len(), 1, "{json}");
        servers.push(place.serve(ONE));
        time
    });
    assert!(times.iter().min().unwrap() < &Duration::from_secs(1), "{times:?}");
    servers[1].ask("embedded");
}

#[test]
fn a_command_counts_what_a_server_of_another_home_holds() {
    let place = room_for_two();
    let (_one, other) = (place.serve(ONE), place.serve(ONE));
    let mut command = place.toko(&["run", "embedded", "Tell me a story."]);
    let finished = command.env("TOKO_HOME", place.path("elsewhere")).output().unwrap();
    let finished = Finished::of(finished);
    finished.assert_refused();
    assert!(finished.stderr.contains(&format!("process {}", other.pid())), "{finished:?}");
}
