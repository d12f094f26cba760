//! The resolver's answers: every name is the proxy.
//!
//! A bottle's resolver asks nobody, so a name carries nothing out; which names are allowed is decided
//! at the proxy, where a refusal can say why. `A` is answered with the proxy's address, every other type
//! (`AAAA`, `HTTPS`, …) with an empty NOERROR, which makes clients go on with `A` at once.
//!
//! The question comes from inside the bottle. Only the header and the one question are read; what
//! follows them (EDNS, anything else) is ignored, and no bytes of it are sent back.

use std::net::Ipv4Addr;

use hickory_proto::op::{Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// The largest question that is read, in bytes. A header, the longest name and the usual options fit
/// several times over; it also bounds the answer, which repeats nothing but the question.
pub const MAX_QUERY: usize = 1_232;

/// How long an answer may be kept, in seconds: short, because a resumed bottle may have another proxy.
const TTL: u32 = 5;

/// Answers one DNS message, without the length prefix that TCP adds.
///
/// `None` means that nothing is sent: the message is too short to have an id, too long, or itself an
/// answer (which must never be answered, or two resolvers could talk for ever).
#[must_use]
pub fn answer(query: &[u8], proxy: Ipv4Addr) -> Option<Vec<u8>> {
    if query.len() > MAX_QUERY {
        return None;
    }
    let mut decoder = BinDecoder::new(query);
    let header = match Header::read(&mut decoder) {
        Ok(header) if header.metadata.message_type == MessageType::Query => header,
        Ok(_) => return None,
        Err(_) => return refusal(query, ResponseCode::FormErr),
    };
    if header.metadata.op_code != OpCode::Query {
        return refusal(query, ResponseCode::NotImp);
    }
    if header.counts.queries != 1 {
        return refusal(query, ResponseCode::FormErr);
    }
    match Query::read(&mut decoder) {
        Ok(question) => reply(&header, question, proxy),
        Err(_) => refusal(query, ResponseCode::FormErr),
    }
}

fn reply(header: &Header, question: Query, proxy: Ipv4Addr) -> Option<Vec<u8>> {
    let mut message = Message::response(header.metadata.id, OpCode::Query);
    message.metadata.recursion_desired = header.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    let asks_address = matches!(question.query_type(), RecordType::A | RecordType::ANY);
    if asks_address && matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
        let record = Record::from_rdata(question.name().clone(), TTL, RData::A(A(proxy)));
        message.add_answer(record);
    }
    message.add_query(question);
    message.to_vec().ok()
}

/// An answer without a question, to a message that has none that can be read.
fn refusal(query: &[u8], code: ResponseCode) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes([*query.first()?, *query.get(1)?]);
    Message::error_msg(id, OpCode::Query, code).to_vec().ok()
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;
    use proptest::prelude::*;

    use super::*;

    const PROXY: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);

    fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).expect("name"), kind));
        message.to_vec().expect("question")
    }

    fn ask(query: &[u8]) -> Message {
        Message::from_vec(&answer(query, PROXY).expect("an answer")).expect("a message")
    }

    #[test]
    fn every_name_is_the_proxy() {
        for name in ["api.example.com.", "intranet.", "a.b.c.d.e.f.", ".", "169.254.169.254."] {
            let message = ask(&question(name, RecordType::A));
            assert_eq!(message.metadata.id, 4711);
            assert_eq!(message.metadata.response_code, ResponseCode::NoError, "{name}");
            assert!(message.metadata.recursion_available && message.metadata.recursion_desired);
            let [record] = message.answers.as_slice() else { panic!("{name}: one record") };
            assert_eq!(record.data, RData::A(A(PROXY)), "{name}");
            assert_eq!(record.name.to_string(), name);
            assert!(record.ttl <= 60);
        }
    }

    #[test]
    fn every_other_type_is_empty_and_no_error() {
        use RecordType as T;
        for kind in
            [T::AAAA, T::HTTPS, T::SVCB, T::TXT, T::MX, T::PTR, T::NS, T::SOA, T::CNAME, T::Unknown(999)]
        {
            let message = ask(&question("api.example.com.", kind));
            assert_eq!(message.metadata.response_code, ResponseCode::NoError, "{kind}");
            assert!(message.answers.is_empty() && message.authorities.is_empty(), "{kind}");
            assert_eq!(message.queries.len(), 1, "{kind}");
        }
    }

    #[test]
    fn the_spelling_of_the_name_is_kept() {
        let reply = answer(&question("aPi.ExAmPlE.cOm.", RecordType::A), PROXY).expect("answer");
        assert!(reply.windows(3).any(|three| three == b"aPi"), "clients that mix the case check it");
    }

    #[test]
    fn what_is_no_single_question_is_refused() {
        let good = question("api.example.com.", RecordType::A);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        for (bytes, code) in [
            (with(5, 0), ResponseCode::FormErr),
            (with(5, 2), ResponseCode::FormErr),
            (with(2, 0x28), ResponseCode::NotImp),
            (good[..good.len() - 3].to_vec(), ResponseCode::FormErr),
            (good[..6].to_vec(), ResponseCode::FormErr),
            // A name that points at itself.
            ([&good[..12], &[0xC0, 12, 0, 1, 0, 1]].concat(), ResponseCode::FormErr),
        ] {
            assert_eq!(ask(&bytes).metadata.response_code, code, "{bytes:?}");
        }
        assert_eq!(answer(&with(2, 0x80), PROXY), None, "an answer is never answered");
        assert_eq!(answer(&[], PROXY), None);
        assert_eq!(answer(&[1], PROXY), None);
        assert_eq!(answer(&[good, vec![0; MAX_QUERY]].concat(), PROXY), None);
    }

    #[test]
    fn nothing_behind_the_question_comes_back() {
        let query = [question("api.example.com.", RecordType::A), b"smuggled".to_vec()].concat();
        let reply = answer(&query, PROXY).expect("answer");
        assert!(!reply.windows(8).any(|eight| eight == b"smuggled"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = answer(&bytes, PROXY);
        }

        #[test]
        fn a_damaged_question_gets_an_answer_or_nothing(at in 0usize..40, value: u8, cut in 0usize..40) {
            let mut bytes = question("api.example.com.", RecordType::A);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(cut.max(2));
            if let Some(reply) = answer(&bytes, PROXY) {
                prop_assert!(reply.len() <= MAX_QUERY + 16);
                let message = Message::from_vec(&reply).expect("a message");
                prop_assert_eq!(message.metadata.id.to_be_bytes(), [bytes[0], bytes[1]]);
            }
        }
    }
}
