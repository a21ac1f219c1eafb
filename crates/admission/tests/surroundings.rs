//! From what was read to the numbers that decisions rest on.

use toko_admission::policy::Policy;
use toko_admission::probe::pressure::Pressure;
use toko_admission::probe::{Bound, Limiter, Reading};
use toko_admission::surroundings::env;
use toko_admission::units::Bytes;

const fn gib(number: u64) -> Bytes {
    Bytes::new(number << 30)
}

/// A machine of 32 GiB, of which 3,276 MiB have to stay free.
fn reading(host_used: Bytes, address_room: Bytes) -> Reading {
    let bound = |limiter, limit, used| Bound { limiter, limit, used };
    Reading {
        host_total: Some(gib(32)),
        host_free: None,
        bounds: vec![
            bound(Limiter::Host, gib(32), host_used),
            bound(Limiter::AddressSpace, address_room + gib(1), gib(1)),
        ],
        pressure: Pressure { own: None, host: None },
        warnings: Vec::new(),
    }
}

#[test]
fn what_has_to_stay_free_is_asked_of_the_machine_and_not_of_addresses() {
    let policy = Policy::local_focused();
    let by_addresses = env(&policy, &reading(gib(2), gib(4)), None);
    assert_eq!(
        (by_addresses.available, by_addresses.emergency_reserve),
        (Some(gib(4)), Bytes::ZERO)
    );
    assert!(by_addresses.bound_by.contains("ulimit -v"), "{}", by_addresses.bound_by);

    // With 5 GiB left and 3,276 MiB of them kept the machine gives less than 4 GiB of addresses.
    let by_host = env(&policy, &reading(gib(27), gib(4)), None);
    assert_eq!(by_host.available, Some(gib(5)));
    assert_eq!(by_host.emergency_reserve, Bytes::from_mib(3276));
    assert!(by_host.bound_by.contains("machine"), "{}", by_host.bound_by);
}
