module shop.test/consumer

go 1.26.0
