//! Inside a CONNECT, and on the transparent 443: TLS is opened, or passed through unopened.
//!
//! CONNECT is always answered 200 and whatever is refused is refused inside, where clients show it.
//! Only a host with `inspect: false` is decided here, and there the TLS must name the same host.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bottle_contract::canonical;
use bottle_contract::decide::{Ingress, Tunnel, decide_connect, decide_hello};
use bottle_contract::names::HTTPS_PORT;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Parts};
use hyper_util::rt::TokioIo;

use super::io::ClientIo;
use super::{ConnectionContext, bridge, serve};
use crate::egress::Egress;
use crate::live;
use crate::report::record::Asked;
use crate::request::answer;
use crate::request::body::{self, Body};
use crate::tls::hello::{self, Hello, Opening};
use crate::upstream::Target;

/// Answers a CONNECT that came to the proxy and goes on inside it.
pub(crate) fn accept(
    egress: Arc<Egress>,
    way: &ConnectionContext,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let authority = request.uri().authority().map_or("", http::uri::Authority::as_str).to_owned();
    if let Tunnel::Deny(refusal) = decide_connect(&egress.live.current().table, &authority) {
        // It names nothing that a tunnel could be opened for.
        let asked = Asked::of_connection(&refusal.host, 0);
        return answer::refused(&egress.reporter, &asked, &refusal);
    }
    let way = ConnectionContext { connect: Some(authority), ..way.clone() };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // How it ended is the bottle's or the server's affair.
        let _ = inside(egress, upgrade, way).await;
    });
    Response::new(body::empty())
}

/// Boxed, because a tunnel serves requests and a request may open a tunnel.
fn inside(
    egress: Arc<Egress>,
    upgrade: OnUpgrade,
    way: ConnectionContext,
) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
    Box::pin(async move {
        let upgraded = upgrade.await.map_err(io::Error::other)?;
        let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<ClientIo>>() else {
            return Err(io::Error::other("a CONNECT came by another way than the proxy's port"));
        };
        let mut io = io.into_inner();
        io.put_back(read_buf);
        match hello::read(io).await? {
            Opening::Http(io) => serve::http1(egress, io, way).await,
            Opening::Tls(hello) => tls(egress, *hello, way).await,
        }
    })
}

/// Goes on with a TLS hello: opens the TLS and serves what is inside, or passes it through.
pub(super) async fn tls(egress: Arc<Egress>, hello: Hello, mut way: ConnectionContext) -> io::Result<()> {
    way.tls = true;
    way.sni.clone_from(&hello.sni);
    let current = egress.live.current();
    match decide_hello(&current.table, way.way_in(), way.sni.as_deref()) {
        Tunnel::Inspect => opened(egress, hello, way).await,
        Tunnel::Passthrough(passed) => {
            let target = live::target(passed.route, &passed.host, passed.port, true);
            unopened(&egress, hello, &target).await
        }
        Tunnel::Deny(refusal) => {
            let asked = Asked::of_connection(&refusal.host, HTTPS_PORT);
            egress.reporter.refused(&asked, &refusal);
            Ok(())
        }
    }
}

/// Serves the requests inside. The certificate is for the name that the client expects; whether that
/// name agrees with the rest is decided with each request, whose answer is readable only in here.
async fn opened(egress: Arc<Egress>, hello: Hello, way: ConnectionContext) -> io::Result<()> {
    let connect = match way.way_in() {
        Ingress::Connect { authority } => canonical::authority(authority).ok().map(|at| at.host),
        _ => None,
    };
    let sni = way.sni.as_deref().map(canonical::host).transpose().map_err(io::Error::other)?;
    let name = sni.or(connect).ok_or(io::ErrorKind::InvalidData)?;
    let config = egress.leaves.config_for(&name).map_err(io::Error::other)?;
    drop(name);
    let tls = hello.open(config).await?;
    match tls.get_ref().1.alpn_protocol() {
        Some(b"h2") => serve::http2(egress, tls, way).await,
        _ => serve::http1(egress, tls, way).await,
    }
}

/// Passes TLS through as it is. Nothing can be answered in there, so that a refusal closes it and is
/// told to the keeper only.
async fn unopened(egress: &Egress, hello: Hello, target: &Target) -> io::Result<()> {
    let asked = Asked::of_connection(&target.host, target.port);
    if let Some(refusal) = egress.locked_out(&target.host) {
        egress.reporter.refused(&asked, &refusal);
        return Ok(());
    }
    match egress.upstream.dialer().tcp(target).await {
        Ok(upstream) => {
            egress.reporter.passed_unopened(&asked);
            tokio::select! {
                passed = bridge(hello.unopened(), upstream) => passed.map(drop),
                _ = egress.lockout.locked() => Ok(()),
            }
        }
        Err(error) => {
            egress.reporter.refused(&asked, &error.refusal());
            Ok(())
        }
    }
}
