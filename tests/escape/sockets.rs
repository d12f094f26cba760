//! Tests socket families and protocols that reach outside a bottle or make the kernel load modules.

use crate::attempts;
use crate::fixture::every_isolating_backend;

const SCRIPT: &str = "import socket, errno\n\
    def tried(name, call):\n\
    \x20 try: call(); print(name, 'made')\n\
    \x20 except OSError as e: print(name, errno.errorcode[e.errno])\n\
    made = socket.socket\n\
    for name, family in [('unix', 1), ('inet', 2), ('inet6', 10)]:\n\
    \x20 for kind in [1, 2]: tried(name, lambda: made(family, kind))\n\
    tried('unix', lambda: socket.socketpair())\n\
    tried('routes', lambda: made(16, 3, 0))\n\
    for name, family in [('packet', 17), ('key', 15), ('alg', 38), ('vsock', 40), ('xdp', 44), ('tipc', 30), ('can', 29), ('bluetooth', 31)]:\n\
    \x20 tried(name, lambda: made(family, 3, 0))\n\
    tried('tipc', lambda: socket.socketpair(30, 1, 0))\n\
    for name, protocol in [('audit', 9), ('netfilter', 12), ('generic', 16), ('kobject', 15)]:\n\
    \x20 tried(name, lambda: made(16, 3, protocol))\n\
    tried('raw', lambda: made(2, 3, 1))\n\
    tried('raw6', lambda: made(10, 3, 58))\n\
    for name, kind, protocol in [('sctp', 1, 132), ('mptcp', 1, 262), ('smc', 1, 256), ('dccp', 6, 33), ('l2tp', 2, 115)]:\n\
    \x20 for family in [2, 10]: tried(name, lambda: made(family, kind, protocol))\n";

#[tokio::test(flavor = "multi_thread")]
async fn only_ordinary_sockets_can_be_created() {
    if !attempts::possible("odd sockets") {
        return;
    }
    let outside = attempts::outside(SCRIPT);
    assert!(outside.starts_with("unix made\nunix made\ninet made\n"), "the control: {outside}");
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("plugs").await;
        let inside = attempts::inside(&bottle, SCRIPT).await;
        let mut lines = inside.lines();
        let plain: Vec<&str> = lines.by_ref().take(8).collect();
        assert!(plain.iter().all(|line| line.ends_with(" made")), "{}: {plain:?}", fixture.name());
        let odd: Vec<&str> = lines.collect();
        assert_eq!(odd.len(), 8 + 1 + 4 + 2 + 10, "{}: {inside}", fixture.name());
        let refused = |line: &&str| line.ends_with(" EPERM") || line.ends_with(" EPROTONOSUPPORT");
        assert!(odd.iter().all(refused), "{}: {odd:?}", fixture.name());
        bottle.remove().await;
    }
}
