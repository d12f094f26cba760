//! Tests that a running guest forwards connections to the proxy, even if one of the ports is in use.

use std::net::{Ipv4Addr, TcpListener};

use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tokio::time::timeout;

use crate::bottle::{Bottle, SOON, ask};

#[tokio::test]
async fn reports_a_taken_port_and_forwards_the_others() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken_port = taken.local_addr().unwrap().port();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let bottle = Bottle::start_with_proxy(&format!("{taken_port},{port}"));
    let bundle = UnixListener::bind(bottle.proxy_socket(port)).unwrap();
    let channel = bottle.connect().await;
    let GuestEvent::Status { troubles, .. } = ask(&channel, &GuestRequest::Status).await else { panic!() };
    assert!(matches!(&troubles[..], [one] if one.contains(&taken_port.to_string())), "{troubles:?}");

    let mut agent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let (mut proxy, _) = timeout(SOON, bundle.accept()).await.unwrap().unwrap();
    agent.write_all(b"out").await.unwrap();
    agent.shutdown().await.unwrap();
    let mut received = String::new();
    timeout(SOON, proxy.read_to_string(&mut received)).await.unwrap().unwrap();
    proxy.write_all(b"back").await.unwrap();
    drop(proxy);
    let mut answer = String::new();
    timeout(SOON, agent.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert_eq!((received.as_str(), answer.as_str()), ("out", "back"));
}
