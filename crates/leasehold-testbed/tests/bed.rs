//! The test bed itself: a server that is killed comes back, and the proxy cuts where it is told to.

#![allow(clippy::unwrap_used)]

use leasehold_testbed::{Fault, Proxy, Server, redis};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn ask(stream: &mut TcpStream, words: &str) -> std::io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{words}\r\n").as_bytes())?;
    let mut answer = [0; 512];
    match stream.read(&mut answer)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        count => Ok(String::from_utf8_lossy(&answer[..count]).into_owned()),
    }
}

/// The other end has gone: it closed the connection, or its machine says that there is none.
fn is_cut(answer: std::io::Result<String>) {
    let kind = answer.unwrap_err().kind();
    let is_cut = matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    assert!(is_cut, "{kind:?}");
}

#[test]
fn a_killed_server_comes_back_with_its_data_and_a_paused_one_does_not_answer() {
    let mut server = redis();
    let connect = |server: &Server| TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    assert_eq!(ask(&mut connect(&server), "SET a 1").unwrap(), "+OK\r\n");
    let mut old = connect(&server);
    server.kill();
    is_cut(ask(&mut old, "GET a"));
    let refused = TcpStream::connect(("127.0.0.1", server.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    server.restart();
    let mut stream = connect(&server);
    leasehold_testbed::wait_until("the log is loaded", || ask(&mut stream, "PING").unwrap() == "+PONG\r\n");
    assert_eq!(ask(&mut stream, "GET a").unwrap(), "$1\r\n1\r\n");
    server.pause();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.resume();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 7);
}

#[test]
fn the_proxy_counts_exchanges_and_each_fault_leaves_what_it_says() {
    let server = redis();
    let proxy = Proxy::start(server.port());
    let connect = || TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    let count = |stream: &mut TcpStream| ask(stream, "GET n").unwrap();
    let mut stream = connect();
    ask(&mut stream, "SET n 0").unwrap();
    assert_eq!(count(&mut stream), "$1\r\n0\r\n");
    assert_eq!((proxy.exchanges(), proxy.connections()), (2, 1));

    proxy.arm(Fault::CutRequest, 1);
    ask(&mut stream, "PING").unwrap();
    is_cut(ask(&mut stream, "INCR n"));
    assert!(!proxy.disarm());
    assert_eq!(count(&mut connect()), "$1\r\n0\r\n");

    proxy.arm_on(Fault::CutReply, 0, b"INCR");
    let mut stream = connect();
    ask(&mut stream, "PING").unwrap();
    is_cut(ask(&mut stream, "INCR n"));
    assert_eq!(count(&mut connect()), "$1\r\n1\r\n");

    proxy.arm(Fault::CutAfterRequest, 0);
    is_cut(ask(&mut connect(), "INCR n"));
    let mut stream = connect();
    leasehold_testbed::wait_until("it is counted", || count(&mut stream) == "$1\r\n2\r\n");

    proxy.sever();
    is_cut(ask(&mut stream, "PING"));
    proxy.heal();
    assert_eq!(ask(&mut connect(), "PING").unwrap(), "+PONG\r\n");
}
