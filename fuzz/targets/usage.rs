//! Fuzzes the usage meter. The measured usage must not depend on how the response is divided into chunks.
#![no_main]

use bottle_protocol::usage::Api;
use bottle_meter::{Expected, Meter};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [kind, cut, answer @ ..] = bytes else { return };
    let api = [Api::Messages, Api::ChatCompletions, Api::Responses][usize::from(kind % 3)];
    let read = |size: usize| {
        let mut meter = Meter::new(api, kind & 0x80 != 0);
        answer.chunks(size).for_each(|piece| meter.feed(piece));
        meter.finish(true, Expected::default())
    };
    assert_eq!(read(usize::from(*cut) + 1), read(answer.len().max(1)));
});
