//! The control: a proxy that checks the epoch, then forwards, without waiting for anybody and without the nonce.

use leasehold_core::Token;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub fn main(args: &[String]) {
    let upstream = args[1].trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let high = Arc::new(Mutex::new(0));
    for stream in listener.incoming().map_while(Result::ok) {
        let (high, upstream) = (high.clone(), upstream.clone());
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            while forward(&mut reader, &upstream, &high).is_some() {}
        });
    }
}

fn forward(reader: &mut BufReader<TcpStream>, upstream: &str, high: &Mutex<u64>) -> Option<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let Some(token) = field("Leasehold-Token: ") else {
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
        return Some(());
    };
    let epoch = token.parse::<Token>().ok()?.epoch.get();
    let length: usize = field("Content-Length: ")?.parse().ok()?;
    let mut high = high.lock().unwrap();
    if epoch < *high {
        reader.get_mut().write_all(b"HTTP/1.1 412 Stale\r\nContent-Length: 0\r\n\r\n").ok()?;
        return None;
    }
    *high = epoch;
    drop(high);
    let mut server = TcpStream::connect(upstream).ok()?;
    server.set_nodelay(true).ok()?;
    server.write_all(head.as_bytes()).ok()?;
    let mut left = length;
    let mut buffer = [0; 512];
    while left > 0 {
        let read = reader.read(&mut buffer[..left.min(512)]).ok().filter(|read| *read > 0)?;
        server.write_all(&buffer[..read]).ok()?;
        left -= read;
    }
    let mut answer = Vec::new();
    server.shutdown(std::net::Shutdown::Write).ok()?;
    server.read_to_end(&mut answer).ok()?;
    reader.get_mut().write_all(&answer).ok()
}
