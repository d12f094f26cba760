//! Answers DNS queries: every name resolves to the egress proxy.
//!
//! A bottle's resolver forwards no query, so a bottle cannot send data out in DNS names. Because every name resolves,
//! the client's request reaches the proxy, which decides on the host and can explain a denial. The resolver answers an
//! `A` query with the proxy's address. For every other type (`AAAA`, `HTTPS`, …) it returns an empty NOERROR response,
//! so that clients fall back to `A` without delay.
//!
//! The query is untrusted because it comes from inside the bottle. The parser reads the header and the one
//! question; it ignores everything after them (EDNS, …) and never copies those bytes into the response.

use std::net::Ipv4Addr;

use hickory_proto::op::{Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// The largest query that is answered, in bytes: several times the size of a header, the longest name and the usual
/// EDNS options. The limit also bounds the response, which repeats only the question.
pub const MAX_QUERY: usize = 1_232;

/// Time to live of a response, in seconds. The value is small because the proxy may have another address after the
/// bottle is resumed.
const TTL: u32 = 5;

/// Answers one DNS message, without TCP's length prefix.
///
/// Returns `None` if the message must not be answered: it is too short to have an id, too long, or itself a
/// response (two resolvers that answer responses could loop for ever).
#[must_use]
pub fn answer(query: &[u8], proxy: Ipv4Addr) -> Option<Vec<u8>> {
    if query.len() > MAX_QUERY {
        return None;
    }
    let mut decoder = BinDecoder::new(query);
    let header = match Header::read(&mut decoder) {
        Ok(header) if header.metadata.message_type == MessageType::Query => header,
        Ok(_) => return None,
        Err(_) => return error_response(query, ResponseCode::FormErr),
    };
    if header.metadata.op_code != OpCode::Query {
        return error_response(query, ResponseCode::NotImp);
    }
    if header.counts.queries != 1 {
        return error_response(query, ResponseCode::FormErr);
    }
    match Query::read(&mut decoder) {
        Ok(question) => reply(&header, question, proxy),
        Err(_) => error_response(query, ResponseCode::FormErr),
    }
}

fn reply(header: &Header, question: Query, proxy: Ipv4Addr) -> Option<Vec<u8>> {
    let mut message = Message::response(header.metadata.id, OpCode::Query);
    message.metadata.recursion_desired = header.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    let wants_address = matches!(question.query_type(), RecordType::A | RecordType::ANY);
    if wants_address && matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
        let record = Record::from_rdata(question.name().clone(), TTL, RData::A(A(proxy)));
        message.add_answer(record);
    }
    message.add_query(question);
    message.to_vec().ok()
}

/// An error response without a question section, for a message whose question cannot be parsed.
fn error_response(query: &[u8], code: ResponseCode) -> Option<Vec<u8>> {
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
    fn every_name_resolves_to_the_proxy() {
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
    fn other_record_types_get_an_empty_noerror() {
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
    fn preserves_the_case_of_the_name() {
        let reply = answer(&question("aPi.ExAmPlE.cOm.", RecordType::A), PROXY).expect("answer");
        assert!(reply.windows(3).any(|three| three == b"aPi"), "clients that randomize the case check it");
    }

    #[test]
    fn refuses_messages_without_exactly_one_question() {
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
            // The name is a compression pointer to itself.
            ([&good[..12], &[0xC0, 12, 0, 1, 0, 1]].concat(), ResponseCode::FormErr),
        ] {
            assert_eq!(ask(&bytes).metadata.response_code, code, "{bytes:?}");
        }
        assert_eq!(answer(&with(2, 0x80), PROXY), None, "a response is never answered");
        assert_eq!(answer(&[], PROXY), None);
        assert_eq!(answer(&[1], PROXY), None);
        assert_eq!(answer(&[good, vec![0; MAX_QUERY]].concat(), PROXY), None);
    }

    #[test]
    fn does_not_echo_bytes_after_the_question() {
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
        fn a_damaged_question_gets_a_valid_response_or_none(at in 0usize..40, value: u8, cut in 0usize..40) {
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
