"""The pipeline's transforms: functions from DataFrame to DataFrame. They know no server and no path: a few rows test them."""
