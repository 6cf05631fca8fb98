//! Orders and replies of the probe protocol as they come from another peer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_proto::measure::{BULK_BYTES_MAX, BULK_WITHIN_MAX, DIAL_MAX, ECHOES_MAX, Order, Reply};

fuzz_target!(|data: &[u8]| {
    if let Ok(order) = Order::read(data) {
        match &order {
            Order::Echo { count } => assert!(*count <= ECHOES_MAX),
            Order::Send(bulk) | Order::Take(bulk) => {
                assert!(bulk.bytes <= BULK_BYTES_MAX && bulk.within <= BULK_WITHIN_MAX);
            }
            Order::Dial(addresses) => assert!(addresses.len() <= DIAL_MAX),
        }
        assert_eq!(Order::read(&order.write()), Ok(order));
    }
    if let Ok(reply) = Reply::read(data) {
        assert_eq!(Reply::read(&reply.write()), Ok(reply));
    }
});
