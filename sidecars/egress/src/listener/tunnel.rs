//! Handles CONNECT tunnels and the transparent port 443: terminates TLS for inspection, or passes TLS through.
//!
//! The proxy answers every valid CONNECT with 200 and sends denials as responses inside the tunnel, because clients
//! show only responses inside the tunnel to the user. Before the first request, the proxy decides only about hosts with
//! `inspect: false`. For these hosts, the TLS handshake must name the same host as the CONNECT.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bottle_policy::canonical;
use bottle_policy::decide::{Ingress, Tunnel, decide_connect, decide_hello};
use bottle_policy::names::HTTPS_PORT;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Parts};
use hyper_util::rt::TokioIo;

use super::early_hints::EarlyHintsIo;
use super::io::ClientIo;
use super::{ConnectionContext, bridge, serve};
use crate::egress::Egress;
use crate::live;
use crate::report::record::RequestInfo;
use crate::request::body::{self, Body};
use crate::request::local_response::{self, Client};
use crate::tls::hello::{self, Hello, Protocol};
use crate::upstream::Target;

/// Answers a CONNECT request to the explicit proxy and handles the tunnel.
pub(crate) fn accept(
    egress: Arc<Egress>,
    connection: &ConnectionContext,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let authority = request.uri().authority().map_or("", http::uri::Authority::as_str).to_owned();
    if let Tunnel::Deny(refusal) = decide_connect(&egress.live.current().table, &authority) {
        // The authority is not a valid host, so there is no destination for a tunnel.
        let info = RequestInfo::for_connection(&refusal.host, 0);
        return local_response::denied(&egress.reporter, &info, &refusal, Client::Any);
    }
    let connection = ConnectionContext { connect: Some(authority), ..connection.clone() };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // An error of one tunnel affects only the bottle or the server, so the error is ignored.
        let _ = run(egress, upgrade, connection).await;
    });
    Response::new(body::empty())
}

/// Serves the requests inside a tunnel. The future is boxed because it is recursive: a tunnel serves requests, and a
/// request may open a tunnel.
fn run(
    egress: Arc<Egress>,
    upgrade: OnUpgrade,
    connection: ConnectionContext,
) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
    Box::pin(async move {
        let upgraded = upgrade.await.map_err(io::Error::other)?;
        let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<EarlyHintsIo<ClientIo>>>() else {
            return Err(io::Error::other("CONNECT on a connection that is not the explicit proxy's"));
        };
        let mut io = io.into_inner().into_inner();
        io.put_back(read_buf);
        match hello::read(io).await? {
            Protocol::Http(io) => serve::http1(egress, io, connection).await,
            Protocol::Tls(hello) => tls(egress, *hello, connection).await,
        }
    })
}

/// Continues after a `ClientHello`: terminates TLS and serves the requests inside, or passes TLS through.
pub(super) async fn tls(
    egress: Arc<Egress>,
    hello: Hello,
    mut connection: ConnectionContext,
) -> io::Result<()> {
    connection.tls = true;
    connection.sni.clone_from(&hello.sni);
    let current = egress.live.current();
    match decide_hello(&current.table, connection.ingress(), connection.sni.as_deref()) {
        Tunnel::Inspect => inspect(egress, hello, connection).await,
        Tunnel::Passthrough(passed) => {
            let target = live::target(passed.route, &passed.host, passed.port, true);
            passthrough(&egress, hello, &target).await
        }
        Tunnel::Deny(refusal) => {
            let info = RequestInfo::for_connection(&refusal.host, HTTPS_PORT);
            egress.reporter.report_denial(&info, &refusal);
            Ok(())
        }
    }
}

/// Terminates TLS and serves the requests inside. The certificate is for the host name that the client expects. The
/// proxy checks only later, for each request, whether this host name agrees with the request, because the client can
/// read a denial only inside TLS.
async fn inspect(egress: Arc<Egress>, hello: Hello, connection: ConnectionContext) -> io::Result<()> {
    let connect = match connection.ingress() {
        Ingress::Connect { authority } => canonical::authority(authority).ok().map(|at| at.host),
        _ => None,
    };
    let sni = connection.sni.as_deref().map(canonical::host).transpose().map_err(io::Error::other)?;
    let name = sni.or(connect).ok_or(io::ErrorKind::InvalidData)?;
    let config = egress.leaves.config_for(&name).map_err(io::Error::other)?;
    drop(name);
    let tls = hello.terminate(config).await?;
    match tls.get_ref().1.alpn_protocol() {
        Some(b"h2") => serve::http2(egress, tls, connection).await,
        _ => serve::http1(egress, tls, connection).await,
    }
}

/// Passes TLS through unchanged. The proxy cannot send a response inside the client's TLS session. So a denial closes
/// the connection, and only the keeper process receives a report of the denial.
async fn passthrough(egress: &Egress, hello: Hello, target: &Target) -> io::Result<()> {
    let info = RequestInfo::for_connection(&target.host, target.port);
    if let Some(refusal) = egress.locked_out(&target.host) {
        egress.reporter.report_denial(&info, &refusal);
        return Ok(());
    }
    match egress.upstream.dialer().connect_tcp(target).await {
        Ok(upstream) => {
            egress.reporter.report_passthrough(&info);
            tokio::select! {
                passed = bridge(hello.into_passthrough(), upstream) => passed.map(drop),
                _ = egress.lockout.locked() => Ok(()),
            }
        }
        Err(error) => {
            egress.reporter.report_denial(&info, &error.refusal());
            Ok(())
        }
    }
}
